/** Marks as an SVG document. */

import type { Hatch, Mark, Move } from "./recording_pen";
import { STROKES, TILE } from "./textures";

interface Defined {
  ids: Map<string, string>;
  text: string[];
}

/** Return the document; `fontFamily` is a list of names as in CSS. */
export function svgOf(
  marks: Mark[],
  width: number,
  height: number,
  title: string,
  fontFamily: string,
): string {
  const defined: Defined = { ids: new Map(), text: [] };
  const body: string[] = [];
  for (const mark of marks) body.push(written(mark, defined));
  const size = `width="${number(width)}" height="${number(height)}" viewBox="0 0 ${number(width)} ${number(height)}"`;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="${escaped(fontFamily)}">`,
    `<title>${escaped(title)}</title>`,
    `<defs>${defined.text.join("")}</defs>`,
    ...body,
    "</svg>\n",
  ].join("\n");
}

function written(mark: Mark, defined: Defined): string {
  switch (mark.kind) {
    case "fill":
      return `<path d="${data(mark.path)}" fill="${mark.color}"${opacity(mark.alpha)}/>`;
    case "hatch":
      return `<path d="${data(mark.path)}" fill="url(#${patternOf(mark.hatch, defined)})"${opacity(mark.alpha)}/>`;
    case "stroke": {
      const dash = mark.dash.length ? ` stroke-dasharray="${mark.dash.join(" ")}"` : "";
      const width = ` stroke-width="${number(mark.width)}" stroke-linejoin="round"`;
      return `<path d="${data(mark.path)}" fill="none" stroke="${mark.color}"${width}${dash}${opacity(mark.alpha)}/>`;
    }
    case "text": {
      const anchor = { left: "", center: ' text-anchor="middle"', right: ' text-anchor="end"' }[mark.align];
      const font = `font-size="${number(mark.size)}"${mark.weight === "400" ? "" : ` font-weight="${mark.weight}"`}`;
      const place = `x="${number(mark.x)}" y="${number(mark.y)}"`;
      return `<text ${place} ${font}${anchor} fill="${mark.color}"${opacity(mark.alpha)}>${escaped(mark.text)}</text>`;
    }
    case "pixels":
      return runs(mark)
        .map(
          ([from, to, color, alpha]) =>
            `<rect x="${number(from)}" y="${number(mark.y)}" width="${number(to - from)}" height="${number(mark.height)}" fill="${color}"${opacity(alpha)}/>`,
        )
        .join("");
    case "clip": {
      const id = `c${defined.ids.size}`;
      defined.ids.set(id, id);
      defined.text.push(`<clipPath id="${id}"><path d="${data(mark.path)}"/></clipPath>`);
      return `<g clip-path="url(#${id})">`;
    }
    case "restore":
      return "</g>";
  }
}

/** Neighbors of the same color as one rectangle: from, to, color and alpha. */
export function runs(mark: Mark & { kind: "pixels" }): [number, number, string, number][] {
  const { pixels } = mark;
  const count = pixels.length / 4;
  const width = mark.width / count;
  const found: [number, number, string, number][] = [];
  for (let first = 0; first < count; ) {
    let last = first + 1;
    while (last < count && isSame(pixels, first, last)) last++;
    const at = 4 * first;
    if (pixels[at + 3]) {
      const color = `#${[0, 1, 2].map((i) => pixels[at + i]!.toString(16).padStart(2, "0")).join("")}`;
      found.push([mark.x + first * width, mark.x + last * width, color, pixels[at + 3]! / 255]);
    }
    first = last;
  }
  return found;
}

function isSame(pixels: Uint8ClampedArray, one: number, other: number): boolean {
  for (let i = 0; i < 4; i++) if (pixels[4 * one + i] !== pixels[4 * other + i]) return false;
  return true;
}

function patternOf(hatch: Hatch, defined: Defined): string {
  const key = `${hatch.texture} ${hatch.color} ${hatch.lineWidth}`;
  let id = defined.ids.get(key);
  if (!id) {
    id = `h${defined.ids.size}`;
    defined.ids.set(key, id);
    const strokes = STROKES[hatch.texture].map(([x, y, toX, toY]) => `M${x} ${y}L${toX} ${toY}`).join("");
    const stroke = `stroke="${hatch.color}" stroke-width="${hatch.lineWidth}"`;
    defined.text.push(
      `<pattern id="${id}" width="${TILE}" height="${TILE}" patternUnits="userSpaceOnUse"><path d="${strokes}" ${stroke}/></pattern>`,
    );
  }
  return id;
}

function data(path: Move[]): string {
  return path
    .map(([kind, ...at]) => {
      if (kind !== "R") return `${kind}${at.map(number).join(" ")}`;
      const [x, y, width, height] = at as [number, number, number, number];
      return `M${number(x)} ${number(y)}h${number(width)}v${number(height)}h${number(-width)}z`;
    })
    .join("");
}

function opacity(alpha: number): string {
  return alpha < 1 ? ` opacity="${number(alpha)}"` : "";
}

function number(value: number): string {
  return String(Math.round(value * 100) / 100);
}

const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

function escaped(text: string): string {
  return text.replace(/\p{Cc}/gu, " ").replace(/[&<>"]/g, (one) => ENTITIES[one]!);
}
