/** The language of the page, and texts in it. Texts are written in English where they are shown, as t`…` or t("…"). */

import catalog from "./chinese.json";

/** The texts of the page in Simplified Chinese by their English text; terms are those of docs/language.md. */
export const CHINESE: Record<string, string> = catalog;

export const LANGUAGES = ["en", "zh"] as const;
export type Language = (typeof LANGUAGES)[number];

/** The language that the address asks for; empty: none. Links keep it. */
export const LANGUAGE_OF_LINK = languageOfHash(globalThis.location?.hash ?? "");

/** That of the address, or else of a page that was written in Chinese, or else of the browser. */
export const LANGUAGE: Language = chosen(
  LANGUAGE_OF_LINK,
  globalThis.document?.documentElement.lang ?? "",
  globalThis.navigator?.language ?? "",
);

export function chosen(link: Language | "", page: string, browser: string): Language {
  if (link) return link;
  return page.startsWith("zh") || browser.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export function languageOfHash(hash: string): Language | "" {
  const asked = new URLSearchParams(hash.replace(/^#/, "")).get("lang") ?? "";
  return LANGUAGES.find((one) => one === asked) ?? "";
}

type Value = string | number | null | undefined;

/** A text of the page; values keep their places by number: t`${count} rows` is "{0} rows" in the catalog. */
export function t(text: TemplateStringsArray | string, ...values: Value[]): string {
  return textIn(LANGUAGE, text, values);
}

export function textIn(language: Language, text: TemplateStringsArray | string, values: Value[]): string {
  const parts = typeof text === "string" ? [text] : text;
  if (language === "en") return parts.reduce((whole, part, i) => whole + String(values[i - 1]) + part);
  const key = parts.reduce((whole, part, i) => `${whole}{${i - 1}}${part}`);
  return (CHINESE[key] ?? key).replace(/\{(\d)\}/g, (_, place: string) => String(values[Number(place)]));
}

const learned = new Map<string, string>();

/** Use the translations that come with the data of a run. */
export function learn(translations: Partial<Record<Language, Record<string, string>>> | undefined): void {
  for (const [english, other] of Object.entries(translations?.[LANGUAGE] ?? {})) learned.set(english, other);
}

/** A text of the data in the language of the page: names of kinds and causes, sentences. Names of others stay. */
export function ofData(text: string): string {
  if (LANGUAGE === "en") return text;
  return learned.get(text) ?? CHINESE[text] ?? text;
}
