/** The description of the run: docs/viewer-format.md, "Meta". */

export type Texture = "plain" | "rising" | "falling" | "dots" | "cross" | "bars";

export interface Kind {
  code: number;
  name: string;
  letter: string;
  color: string;
  texture: Texture;
  lane: string;
  meaning: string;
}

/** What a rank waits for in an idle interval, and how such an interval is drawn. */
export interface Wait {
  name: string;
  label: string;
  color: string;
  texture: Texture;
}

export interface Ranks {
  rank: number[];
  machine: (string | null)[];
  host: (string | null)[];
  device: (string | null)[];
  pp: (number | null)[];
  dp: (number | null)[];
  tp: (number | null)[];
  cp: (number | null)[];
  ep: (number | null)[];
  pipeline: (number | null)[];
  stages: number[][];
}

export interface Step {
  step: number;
  /** The spans of the step on the compute lane, for the time axis; the length of the step is `window_ns`. */
  start: number;
  end: number;
  /** Null where not known, as is the bubble. */
  window_ns: number | null;
  bubble_fraction: number | null;
  in_totals: boolean | null;
  /** How much longer than usual an outlier is; null: it is none. */
  excess_ns: number | null;
}

export interface Clock {
  machine: string | null;
  error_lo_ns: number | null;
  error_hi_ns: number | null;
  estimated_error_ns?: number | null;
  method: string;
}

export interface Diagnostic {
  /** One of vocabulary/codes.py. */
  code: string;
  severity: "error" | "warning" | "info";
  message: string;
  source: string | null;
  rank: number | null;
  location: string | null;
  count: number;
}

export interface LedgerPart {
  name: string;
  label: string;
  /** Null: nothing of this cause was recorded. */
  ns: number | null;
  /** Of the denominator, as texts show it: the quotient of the rounded times may differ in the last digit. */
  fraction: number | null;
  meaning: string;
  /** What it comes from; they sum to the part. Empty where nothing is known. */
  origins: Origin[];
}

/** Ranks by number: a rank, a link from rank to peer, a pipeline, or a rank that is idle; all null: the rest. */
export interface Origin {
  rank: number | null;
  peer: number | null;
  pipeline: number | null;
  victim: number | null;
  ns: number;
}

export interface Ledger {
  denominator: string;
  total_ns: number;
  parts: LedgerPart[];
}

/** The bubble and its causes, the best fix and redesign, and further findings: sentences. */
export interface Verdict {
  why: string;
  improvement: string;
  /** Which changes were tested for the improvement, and which were not and why. */
  tested: string;
  findings: Finding[];
}

/** A finding, and where it is seen: numbers of a step and a rank, and the id of a span, each null if there is none. */
export interface Finding {
  text: string;
  step: number | null;
  rank: number | null;
  span: number | null;
}

/** What a mapped or inferred trace was understood as: names and texts of rows. */
export type Understood = [string, string][];

/** What changed from another run to this one, in sentences, and what could not be compared. */
export interface Changes {
  sentences: string[];
  diagnostics: Diagnostic[];
}

/** The median duration of all kernels, and the number of streams of each row. */
export interface KernelFacts {
  count: number;
  typical_ns: number;
  lanes: number[];
}

/** Texts of the data in other languages than English, by language. */
export type Translations = Partial<Record<"en" | "zh", Record<string, string>>>;

export interface Meta {
  format: number;
  translations?: Translations;
  title: string;
  /** The title with the name and path of the input; pages of earlier versions have none. */
  document_title?: string;
  generator: string;
  base_ns: string;
  end: number;
  time_unit: "ns" | "cost";
  span_count: number;
  kinds: Kind[];
  waits: Wait[];
  /** Names of the waits that occur, in the order of `waits`: the legend needs them before the intervals are read. */
  idle_waits?: string[];
  ranks: Ranks;
  steps: Step[];
  clocks: Clock[];
  diagnostics: Diagnostic[];
  sections: string[];
  /** Kernels of which there are too many for a section: the local server sends those of a part. */
  kernels?: KernelFacts;
  levels: { bin_ns: number }[];
  tile_bins: number;
  tile_rows: number;
  version?: string;
}

export const META_FORMAT = 1;

/** Lanes by code. */
export const COMPUTE = 0;
export const COMM = 1;
export const HOST = 2;
export const LANES = ["compute", "comm", "host"];

const ACTIONS = new Set(["forward", "backward", "backward_input", "backward_weight"]);

/** Kinds by code; codes are small, so an array with holes will do. */
export function kindsByCode(kinds: Kind[]): Kind[] {
  const byCode: Kind[] = [];
  for (const kind of kinds) byCode[kind.code] = kind;
  return byCode;
}

/** Whether a schedule orders this kind. */
export function isAction(kind: Kind | undefined): boolean {
  return kind !== undefined && ACTIONS.has(kind.name);
}
