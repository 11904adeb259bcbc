/** Save what is in view as a picture: the browser downloads a file. */

import { pdfOf } from "../draw/pdf";
import { type Picture, pictureOf } from "../draw/picture";
import { rasterOf } from "../draw/raster";
import type { Layers } from "../draw/scene";
import { svgOf } from "../draw/svg";
import type { TimelinePainter } from "../draw/timeline";
import type { Viewer } from "../layout/viewer";
import { t } from "../model/language";
import type { PictureFormat } from "../panels/commands";

/** Pixels of a PNG per pixel of the page, at least. */
const LEAST_RATIO = 2;
const TYPES: Record<PictureFormat, string> = {
  svg: "image/svg+xml",
  png: "image/png",
  pdf: "application/pdf",
};

/** Download the picture, or state why it cannot be saved. */
export async function savePicture(
  viewer: Viewer,
  painter: TimelinePainter,
  layers: Layers,
  chunkCount: number,
  format: PictureFormat,
): Promise<void> {
  try {
    const picture = pictureOf(viewer, painter, layers, chunkCount);
    viewer.revision.value += 1; // the painter has drawn for another size
    const name = `${fileName(picture.title)}.${format}`;
    download(await contentOf(picture, format), name);
    viewer.notify(t`saved ${name}`);
  } catch (problem) {
    const words = problem instanceof Error ? problem.message : String(problem);
    viewer.problem.value = t`The picture cannot be saved. ${words}`;
  }
}

async function contentOf(picture: Picture, format: PictureFormat): Promise<Blob> {
  const { marks, width, height, title, inks } = picture;
  if (format !== "png") {
    const write = format === "svg" ? svgOf : pdfOf;
    return new Blob([await write(marks, width, height, title, inks.fontFamily)], { type: TYPES[format] });
  }
  const ratio = Math.max(window.devicePixelRatio || 1, LEAST_RATIO);
  const canvas = rasterOf(marks, width, height, ratio, inks.fontFamily);
  const content = await new Promise<Blob | null>((done) => canvas.toBlob(done, TYPES.png));
  if (!content) throw new Error(t("It is too large for this browser."));
  return content;
}

/** The title without what file systems do not allow. */
export function fileName(title: string): string {
  const allowed = title.replace(/[\p{Cc}<>:"/\\|?*]+/gu, "-").replace(/^[-. ]+|[-. ]+$/g, "");
  return allowed.slice(0, 80) || "stagescope";
}

export function download(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
