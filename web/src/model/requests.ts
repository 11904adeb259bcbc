/** Requests to the local server, and how it refuses them. */

import { DataError } from "./columns";
import { learn, ofData, t } from "./language";
import type { Translations } from "./meta";

export const OK = 200;
export const BAD_REQUEST = 400;
export const NOT_FOUND = 404;
const GONE = 410;
export const TOO_MANY = 413;

/** The server does not answer. */
export class SilenceError extends DataError {}
/** The server no longer has the version of this page. */
export class GoneError extends DataError {}

/** The answer of the server; of those that are no good one, only `expected` is returned. Throws DataError. */
export async function ask(address: string, expected = OK): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(address, { credentials: "same-origin" });
  } catch {
    throw new SilenceError(t("The server does not answer. Is stagescope open still running?"));
  }
  if (answer.ok || answer.status === expected) return answer;
  if (answer.status === GONE) throw new GoneError(t("The server no longer has the data of this page."));
  throw new DataError(t`The server answered ${answer.status}${await errorOf(answer)}.`);
}

/** Why the server refuses a request, with its translations. */
interface Refusal {
  error?: string;
  translations?: Translations;
}

/** The sentence of a refusal in the language of the page. */
function sentenceOf({ error, translations }: Refusal): string {
  learn(translations);
  return ofData(error ?? "");
}

/** The error message of a response, as the end of a sentence. */
async function errorOf(answer: Response): Promise<string> {
  const text = (await answer.text()).slice(0, 2000);
  try {
    const words = sentenceOf(JSON.parse(text) as Refusal);
    return words && `: ${words}`;
  } catch {
    return text ? `: ${text.slice(0, 300)}` : "";
  }
}

export async function bytesOf(answer: Response): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await answer.arrayBuffer());
}

/** The object in an answer. Throws an error whose message is the server's sentence if it refuses. */
export async function jsonOf<T>(answer: Response): Promise<T> {
  const found = (await answer.json()) as T & Refusal;
  if (!answer.ok) throw new Error(sentenceOf(found));
  return found;
}
