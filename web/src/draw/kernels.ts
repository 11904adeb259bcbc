/** The lane of kernels below the actions: one line per stream, colored by category. */

import { textColor } from "../layout/colors";
import { length } from "../layout/view";
import { CATEGORIES, type Kernel, type Kernels } from "../model/kernels";
import { type DrawnRow, type Scene, x } from "./scene";

/** In the order of CATEGORIES; Okabe and Ito's colors, which differ without full color vision. */
const COLORS = ["#0072b2", "#56b4e9", "#009e73", "#d55e00", "#cc79a7", "#8a8f98"];
const MOST_DRAWN = 20_000;
const LEAST_NAMED_WIDTH = 40;
const LEAST_NAMED_HEIGHT = 10;
const CHARACTER_WIDTH = 5.6;

export function kernelColor(category: string): string {
  return COLORS[(CATEGORIES as readonly string[]).indexOf(category)] ?? COLORS[5]!;
}

export function drawKernels(scene: Scene): void {
  const kernels = scene.viewer.kernels.value;
  if (!kernels) return;
  let left = MOST_DRAWN;
  for (const row of scene.rows) if (row.kernelHeight > 0) left = drawRow(scene, kernels, row, left);
  const selected = scene.viewer.selection.kernel.value;
  if (selected) drawFrame(scene, kernels, selected);
}

/** Top and height of a lane of kernels. */
function line(kernels: Kernels, row: DrawnRow, lane: number): [number, number] {
  const height = row.kernelHeight / Math.max(kernels.laneCount(row.row), 1);
  return [row.kernelTop + lane * height, Math.max(height - 0.75, 1)];
}

function drawRow(scene: Scene, kernels: Kernels, row: DrawnRow, most: number): number {
  const { pen, view, width } = scene;
  const [first, last] = kernels.within(row.row, view.start, view.end);
  const shortest = length(view) / width / 4;
  pen.font = `9px ${scene.inks.fontFamily}`;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  for (let i = first; i < last && most > 0; i++) {
    const end = kernels.start[i]! + kernels.duration[i]!;
    if (end < view.start || kernels.duration[i]! < shortest) continue;
    most--;
    const [top, height] = line(kernels, row, kernels.lane[i]!);
    const from = Math.max(x(scene, kernels.start[i]!), -2);
    const across = Math.max(Math.min(x(scene, end), width + 2) - from, 0.5);
    pen.fillStyle = COLORS[kernels.category[i]!]!;
    pen.fillRect(from, top, across > 3 ? across - 0.5 : across, height);
    if (across >= LEAST_NAMED_WIDTH && height >= LEAST_NAMED_HEIGHT) {
      pen.fillStyle = textColor(COLORS[kernels.category[i]!]!);
      const text = shortName(kernels.kernel(i).name);
      pen.fillText(text.slice(0, Math.floor((across - 6) / CHARACTER_WIDTH)), from + 3, top + height / 2);
    }
  }
  return most;
}

/** The last part of a kernel's name, without its template and arguments. */
export function shortName(name: string): string {
  const bare = name.replace(/^void /, "").split(/[<(]/)[0]!;
  return bare.split("::").pop() || name;
}

function drawFrame(scene: Scene, kernels: Kernels, kernel: Kernel): void {
  const row = scene.drawn.get(kernel.row);
  if (!row || row.kernelHeight === 0) return;
  const [top, height] = line(kernels, row, kernel.lane);
  const from = x(scene, kernel.start);
  const to = x(scene, kernel.start + kernel.duration);
  scene.pen.strokeStyle = scene.inks.ink;
  scene.pen.lineWidth = 2;
  scene.pen.strokeRect(from - 1, top - 1, to - from + 2, height + 2);
}
