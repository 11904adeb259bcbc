/** All facts of the selected kernel. */

import { kernelColor, shortName } from "../draw/kernels";
import type { Viewer } from "../layout/viewer";
import type { Kernel } from "../model/kernels";
import { ofData, t } from "../model/language";
import { countText, durationText, momentText, type TimeUnit } from "../model/time";

const LONGEST_READOUT = 60;

/** One line about a kernel. */
export function kernelSentence(kernel: Kernel, unit: TimeUnit): string {
  const words = [shortName(kernel.name).slice(0, LONGEST_READOUT), kernel.category];
  if (kernel.action) words.push(t`in ${kernel.action}`);
  if (kernel.stream !== null) words.push(t`stream ${kernel.stream}`);
  words.push(durationText(kernel.duration, unit));
  return words.join(" · ");
}

export function KernelDetails({ viewer, kernel }: { viewer: Viewer; kernel: Kernel }) {
  const { meta } = viewer;
  const facts: [string, string | null][] = [
    ["category", kernel.category],
    ["operation", kernel.operation?.replaceAll("_", " ") ?? null],
    ["rank", String(meta.ranks.rank[kernel.row])],
    ["stream", kernel.stream === null ? null : String(kernel.stream)],
    ["action", kernel.action ?? t("none")],
    ["overlapped pair", kernel.pair === null ? null : String(kernel.pair)],
    ["start on the clock", `${momentText(meta.base_ns, kernel.start)} ns`],
    ["duration", `${durationText(kernel.duration)} (${countText(kernel.duration)} ns)`],
    ["device", meta.ranks.device[kernel.row] ?? null],
    ["name", kernel.name],
  ];
  return (
    <div>
      <h3 class="action">
        <span class="kernel-swatch" aria-hidden="true" style={{ background: kernelColor(kernel.category) }} />
        kernel {shortName(kernel.name)}
      </h3>
      <dl class="facts">
        {facts
          .filter((fact): fact is [string, string] => fact[1] !== null)
          .map(([name, value]) => (
            <div key={name}>
              <dt>{ofData(name)}</dt>
              <dd>{value}</dd>
            </div>
          ))}
      </dl>
    </div>
  );
}
