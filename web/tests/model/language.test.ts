import { expect, test } from "vitest";
import { CHINESE, chosen, languageOfHash, textIn } from "../../src/model/language";
import { isShown, keysOf, literalsOf, sources } from "../texts";

const english = (text: TemplateStringsArray, ...values: (string | number)[]): string =>
  textIn("en", text, values);
const chinese = (text: TemplateStringsArray, ...values: (string | number)[]): string =>
  textIn("zh", text, values);

test("values keep their places in both languages", () => {
  expect(english`${3} of ${7} rows`).toBe("3 of 7 rows");
  expect(chinese`${3} of ${7} rows`).toBe("7 行中的 3 行");
  expect(textIn("zh", "Legend", [])).toBe("图例");
  expect(textIn("zh", "no catalog has this", [])).toBe("no catalog has this");
});

test("the language is that of the link, or of a Chinese page, or of the browser", () => {
  expect(languageOfHash("#t=1-2&lang=zh")).toBe("zh");
  expect(languageOfHash("#lang=klingon")).toBe("");
  expect(chosen("en", "zh-CN", "zh-CN")).toBe("en");
  expect(chosen("", "zh-CN", "en-US")).toBe("zh");
  expect(chosen("", "en", "zh-CN")).toBe("zh");
  expect(chosen("", "en", "en-US")).toBe("en");
  expect(chosen("", "en", "fr")).toBe("en");
});

const keys = new Set(sources().flatMap(keysOf));

test("every text of the page is in the catalog", () => {
  expect([...keys].filter((key) => !(key in CHINESE))).toEqual([]);
});

test("every text of the catalog is one of the page, or a word of the data", () => {
  const words = sources().flatMap(literalsOf);
  expect(
    Object.keys(CHINESE).filter((key) => !keys.has(key) && !words.includes(key) && !DATA.has(key)),
  ).toEqual([]);
});

/** Words that the data of a run have, besides those with translations of their own. */
const DATA = new Set([
  "ended",
  "error",
  "gone",
  "info",
  "running",
  "samples",
  "silent",
  "tokens",
  "waiting",
  "warning",
]);

test("a translation has the values of its text", () => {
  const places = (text: string): string => [...new Set(text.match(/\{\d\}/g))].sort().join();
  for (const [key, text] of Object.entries(CHINESE)) expect([key, places(text)]).toEqual([key, places(key)]);
});

test("no text is written outside of t", () => {
  const bare = sources().flatMap((source) => isShown(source));
  expect(bare).toEqual([]);
});

test("a text that is written outside of t is found", () => {
  const planted = {
    path: "panels/planted.tsx",
    text: 'export const A = () => <p title="Go there">Some words</p>;',
  };
  expect(isShown(planted)).toEqual(["panels/planted.tsx: Go there", "panels/planted.tsx: Some words"]);
});
