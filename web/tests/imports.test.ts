/** model -> layout -> draw -> panels -> app: a folder imports from itself and from those before it. */

import { readdirSync, readFileSync } from "node:fs";
import { expect, it } from "vitest";

const ORDER = ["model", "layout", "draw", "panels", "app"];
const SOURCE = new URL("../src/", import.meta.url);
const MOST_LINES = 400;

const files = ORDER.flatMap((folder) =>
  readdirSync(new URL(folder, SOURCE))
    .filter((file) => /\.tsx?$/.test(file))
    .map((file) => `${folder}/${file}`),
);

it("there is nothing beside the folders", () =>
  expect(readdirSync(SOURCE).sort()).toEqual([...ORDER].sort()));

it.each(files)("%s imports one way and is of a readable size", (file) => {
  const text = readFileSync(new URL(file, SOURCE), "utf8");
  const own = ORDER.indexOf(file.split("/")[0]!);
  const imported = [...text.matchAll(/from "\.\.\/(\w+)\//g)].map((match) => match[1]!);
  expect(imported.filter((folder) => ORDER.indexOf(folder) > own)).toEqual([]);
  expect(text.split("\n").length).toBeLessThanOrEqual(MOST_LINES);
});

it.each(files.filter((file) => /^(model|layout)\//.test(file) && !file.endsWith("embedded.ts")))(
  "%s needs no browser",
  (file) => {
    const text = readFileSync(new URL(file, SOURCE), "utf8");
    expect(text).not.toMatch(/\b(document|window)\./);
  },
);
