import { defineConfig } from "vite";
import { notices } from "./notices.ts";

/** One script and one style sheet, without a hash in their names: they are committed, and read by the Python side. */
export default defineConfig({
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  plugins: [notices("viewer.licenses.txt")],
  build: {
    target: "es2022",
    outDir: "../src/stagescope/viewer/assets",
    emptyOutDir: true,
    modulePreload: false,
    cssCodeSplit: false,
    lib: {
      entry: "src/app/main.tsx",
      formats: ["iife"],
      name: "stagescope",
      fileName: () => "viewer.js",
      cssFileName: "viewer",
    },
  },
});
