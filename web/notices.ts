import { readFileSync } from "node:fs";
import type { Plugin } from "vite";

const PACKAGE = /^(.*\/node_modules\/((?:@[^/]+\/)?[^/]+))\//;

/** Put the license of every bundled package before the script, and into a file beside it. */
export function notices(fileName: string): Plugin {
  return {
    name: "notices",
    generateBundle(_options, bundle) {
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== "chunk") {
          continue;
        }
        const folders = new Set(Object.keys(chunk.modules).flatMap((id) => PACKAGE.exec(id)?.[1] ?? []));
        const text = [...folders].sort().map(notice).join("\n\n");
        // Added after minification, which removes comments.
        chunk.code = `/*!\n${text}\n*/\n${chunk.code}`;
        this.emitFile({ type: "asset", fileName, source: `${text}\n` });
      }
    },
  };
}

/** Return name, version and license of the package in a folder. */
function notice(folder: string): string {
  const { name, version, license } = JSON.parse(readFileSync(`${folder}/package.json`, "utf-8"));
  const text = readFileSync(`${folder}/LICENSE`, "utf-8").trim();
  if (text.includes("*/")) {
    throw new Error(`the license of ${name} ends a comment`);
  }
  return `${name} ${version} (${license})\n\n${text}`;
}
