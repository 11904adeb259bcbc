/** The verdict: the sentences of `stagescope report`, and what a trace of another tool was understood as. */

import type { Viewer } from "../layout/viewer";
import { ofData } from "../model/language";
import type { Finding, Understood, Verdict } from "../model/meta";
import { TEXTS } from "./texts";

export function VerdictWords({ viewer, verdict }: { viewer: Viewer; verdict: Verdict }) {
  return (
    <div class="verdict">
      <p>{ofData(verdict.why)}</p>
      {verdict.improvement && <p>{ofData(verdict.improvement)}</p>}
      {verdict.tested && (
        <details class="tested">
          <summary>{TEXTS.tested}</summary>
          <p>{ofData(verdict.tested)}</p>
        </details>
      )}
      {verdict.findings.length > 0 && (
        <ul>
          {verdict.findings.map((finding) => (
            <li key={finding.text}>
              {isPlaced(finding) ? (
                <button type="button" class="link" onClick={() => void viewer.showPlace(finding)}>
                  {ofData(finding.text)}
                </button>
              ) : (
                ofData(finding.text)
              )}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function isPlaced(finding: Finding): boolean {
  return finding.step !== null || finding.rank !== null || finding.span !== null;
}

/** Ranks, stages, micro-batches and steps as they were read, to be checked before the verdict is believed. */
export function UnderstoodAs({ rows }: { rows: Understood }) {
  return (
    <dl class="facts">
      {rows.map(([name, text]) => (
        <div key={`${name} ${text}`}>
          <dt>{ofData(name)}</dt>
          <dd>{ofData(text)}</dd>
        </div>
      ))}
    </dl>
  );
}
