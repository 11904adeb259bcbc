/** The verdict: the sentences of `stagescope report`. */

import type { Verdict } from "../model/meta";

export function VerdictWords({ verdict }: { verdict: Verdict }) {
  return (
    <div class="verdict">
      <p>{verdict.why}</p>
      {verdict.improvement && <p>{verdict.improvement}</p>}
      {verdict.findings.length > 0 && (
        <ul>
          {verdict.findings.map((finding) => (
            <li key={finding}>{finding}</li>
          ))}
        </ul>
      )}
    </div>
  );
}
