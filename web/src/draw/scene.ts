/** What one picture is drawn from. */

import type { PlacedRow } from "../layout/rows";
import { pixelOf, type View } from "../layout/view";
import type { Viewer } from "../layout/viewer";
import type { IdleIntervals } from "../model/idle";
import type { Kernels } from "../model/kernels";
import type { Spans, Tile } from "../model/spans";
import type { TimeUnit } from "../model/time";
import type { TextureStyles } from "./textures";
import type { Inks } from "./theme";

export const AXIS_HEIGHT = 34;

export interface Layers {
  idle: IdleIntervals | null;
  /** Ids on the critical path. */
  critical: Set<number> | null;
  criticalIds: number[];
  ideal: Spans | null;
  kernels: Kernels | null;
}

/** A row as it is drawn: bands in pixels from the top of the canvas. */
export interface DrawnRow extends PlacedRow {
  y: number;
  mainTop: number;
  mainHeight: number;
  thinTop: number;
  thinHeight: number;
  ghostTop: number;
  ghostHeight: number;
  kernelTop: number;
  kernelHeight: number;
}

export interface Scene {
  pen: CanvasRenderingContext2D;
  viewer: Viewer;
  inks: Inks;
  textures: TextureStyles;
  view: View;
  width: number;
  height: number;
  ratio: number;
  rows: DrawnRow[];
  /** By row of the run. */
  drawn: Map<number, DrawnRow>;
  tiles: Tile[];
  layers: Layers;
  unit: TimeUnit;
}

export function x(scene: Scene, time: number): number {
  return pixelOf(scene.view, scene.width, time);
}
