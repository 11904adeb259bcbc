/** Why the steps took as long as they did, in the words of the report. */

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
