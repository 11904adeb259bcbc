/** Marks as a PDF document of one page. Text is Helvetica, which every reader has; other scripts become pixels. */

import { channelsOf, type Hatch, type Mark, type Move } from "./recording_pen";
import { STROKES, TILE } from "./textures";

const POINTS_PER_PIXEL = 0.75;
/** Pixels per unit of text in other scripts. */
const TEXT_RATIO = 4;
/** Widths of the characters from space to tilde, in thousandths of the size (Adobe's metrics of Helvetica). */
const WIDTHS =
  "278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556 556 278 278 " +
  "584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 722 778 667 778 722 667 611 722 667 944 " +
  "667 667 611 278 278 278 469 556 333 556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 " +
  "278 556 500 722 500 500 500 334 260 334 584";
const WIDTH_OF = WIDTHS.split(" ").map(Number);
const OTHER_WIDTH = 556;
/** Characters of WinAnsiEncoding beyond Latin-1 that texts of the page have. */
const OTHERS: Record<string, number> = { "…": 0x85, "–": 0x96, "—": 0x97, "’": 0x92, "•": 0x95 };

type Bytes = Uint8Array<ArrayBuffer>;

/** Objects of a document by number, from 1. */
class Objects {
  readonly list: Bytes[] = [];

  add(text: string): number {
    this.list.push(latin(text));
    return this.list.length;
  }

  async stream(head: string, content: Bytes): Promise<number> {
    const packed = await deflated(content);
    const begin = latin(`<<${head}/Length ${packed.length}/Filter/FlateDecode>>stream\n`);
    this.list.push(joined([begin, packed, latin("\nendstream")]));
    return this.list.length;
  }
}

interface Resources {
  objects: Objects;
  alphas: Map<string, string>;
  patterns: Map<string, { name: string; hatch: Hatch }>;
  images: { name: string; width: number; height: number; pixels: Uint8ClampedArray }[];
}

export async function pdfOf(
  marks: Mark[],
  width: number,
  height: number,
  title: string,
  fontFamily: string,
): Promise<Bytes> {
  const used: Resources = { objects: new Objects(), alphas: new Map(), patterns: new Map(), images: [] };
  const [across, down] = [width * POINTS_PER_PIXEL, height * POINTS_PER_PIXEL];
  const matrix = `${POINTS_PER_PIXEL} 0 0 ${-POINTS_PER_PIXEL} 0 ${number(down)}`;
  const lines = [`${matrix} cm 1 j`, ...marks.map((mark) => operators(mark, used, fontFamily))];
  const { objects } = used;
  const content = await objects.stream("", latin(lines.join("\n")));
  const resources = [
    "/Font<</R<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
    "/B<</Type/Font/Subtype/Type1/BaseFont/Helvetica-Bold/Encoding/WinAnsiEncoding>>>>",
    `/Pattern<<${await patternsOf(used, matrix)}>>`,
    `/XObject<<${await imagesOf(used)}>>`,
    `/ExtGState<<${statesOf(used)}>>`,
  ].join("");
  const pages = objects.list.length + 2;
  const page = objects.add(
    `<</Type/Page/Parent ${pages} 0 R/MediaBox[0 0 ${number(across)} ${number(down)}]/Contents ${content} 0 R/Resources<<${resources}>>>>`,
  );
  objects.add(`<</Type/Pages/Count 1/Kids[${page} 0 R]>>`);
  const catalog = objects.add(`<</Type/Catalog/Pages ${pages} 0 R>>`);
  const info = objects.add(`<</Title ${unicode(title)}/Producer(stagescope)>>`);
  return document_(objects.list, catalog, info);
}

function operators(mark: Mark, used: Resources, fontFamily: string): string {
  switch (mark.kind) {
    case "fill":
      return inState(mark.alpha, mark.color, used, `${colorOf(mark.color)} rg ${path(mark.path)} f`);
    case "hatch":
      return inState(
        mark.alpha,
        "",
        used,
        `/Pattern cs /${patternName(mark.hatch, used)} scn ${path(mark.path)} f`,
      );
    case "stroke": {
      const style = `${colorOf(mark.color)} RG ${number(mark.width)} w [${mark.dash.join(" ")}] 0 d`;
      return inState(mark.alpha, mark.color, used, `${style} ${path(mark.path)} S`);
    }
    case "text":
      return text(mark, used, fontFamily);
    case "pixels":
      return image(mark.x, mark.y, mark.width, mark.height, mark.pixels.length / 4, mark.pixels, used);
    case "clip":
      return `q ${path(mark.path)} W n`;
    case "restore":
      return "Q";
  }
}

/** Operators with an opacity, which holds for them alone. */
function inState(alpha: number, color: string, used: Resources, inner: string): string {
  const whole = alpha * (color ? channelsOf(color)[3] : 1);
  return whole < 1 ? `q /${alphaName(whole, used)} gs ${inner} Q` : `q ${inner} Q`;
}

function alphaName(alpha: number, used: Resources): string {
  const key = number(alpha);
  const name = used.alphas.get(key) ?? `A${used.alphas.size}`;
  used.alphas.set(key, name);
  return name;
}

function patternName(hatch: Hatch, used: Resources): string {
  const key = `${hatch.texture} ${hatch.color} ${hatch.lineWidth}`;
  const found = used.patterns.get(key) ?? { name: `P${used.patterns.size}`, hatch };
  used.patterns.set(key, found);
  return found.name;
}

function text(mark: Mark & { kind: "text" }, used: Resources, fontFamily: string): string {
  const codes = winAnsi(mark.text);
  if (!codes) return textImage(mark, used, fontFamily);
  const across =
    (codes.reduce((sum, code) => sum + (WIDTH_OF[code - 32] ?? OTHER_WIDTH), 0) / 1000) * mark.size;
  const left = mark.x - (mark.align === "center" ? across / 2 : mark.align === "right" ? across : 0);
  const font = Number(mark.weight) >= 600 ? "B" : "R";
  const shown = codes.map((code) => code.toString(16).padStart(2, "0")).join("");
  const place = `1 0 0 -1 ${number(left)} ${number(mark.y)} Tm`;
  const inner = `${colorOf(mark.color)} rg BT /${font} ${number(mark.size)} Tf ${place} <${shown}> Tj ET`;
  return inState(mark.alpha, mark.color, used, inner);
}

/** Codes of a text in the encoding of the fonts; null if it has other characters. */
function winAnsi(text: string): number[] | null {
  const codes: number[] = [];
  for (const character of text) {
    const point = character.codePointAt(0)!;
    const code =
      OTHERS[character] ?? ((point >= 32 && point < 127) || (point >= 160 && point < 256) ? point : null);
    if (code === null) return null;
    codes.push(code);
  }
  return codes;
}

function textImage(mark: Mark & { kind: "text" }, used: Resources, fontFamily: string): string {
  const canvas = document.createElement("canvas");
  const font = `${mark.weight} ${mark.size * TEXT_RATIO}px ${fontFamily}`;
  let pen = canvas.getContext("2d")!;
  pen.font = font;
  canvas.width = Math.max(Math.ceil(pen.measureText(mark.text).width), 1);
  canvas.height = Math.ceil(mark.size * TEXT_RATIO * 1.4);
  pen = canvas.getContext("2d")!;
  pen.font = font;
  pen.fillStyle = mark.color;
  pen.fillText(mark.text, 0, mark.size * TEXT_RATIO);
  const [width, height] = [canvas.width / TEXT_RATIO, canvas.height / TEXT_RATIO];
  const left = mark.x - (mark.align === "center" ? width / 2 : mark.align === "right" ? width : 0);
  const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
  return image(left, mark.y - mark.size, width, height, canvas.width, data, used);
}

function image(
  left: number,
  top: number,
  width: number,
  height: number,
  across: number,
  pixels: Uint8ClampedArray,
  used: Resources,
): string {
  const name = `I${used.images.length}`;
  used.images.push({ name, width: across, height: pixels.length / 4 / across, pixels });
  return `q ${number(width)} 0 0 ${number(-height)} ${number(left)} ${number(top + height)} cm /${name} Do Q`;
}

async function patternsOf(used: Resources, matrix: string): Promise<string> {
  const found: string[] = [];
  for (const { name, hatch } of used.patterns.values()) {
    const strokes = STROKES[hatch.texture].map(([x, y, toX, toY]) => `${x} ${y} m ${toX} ${toY} l`).join(" ");
    const alpha = channelsOf(hatch.color)[3];
    const state = alpha < 1 ? `/${alphaName(alpha, used)} gs ` : "";
    const inner = `${state}${colorOf(hatch.color)} RG ${hatch.lineWidth} w ${strokes} S`;
    const states = alpha < 1 ? `/ExtGState<</${alphaName(alpha, used)}<</CA ${number(alpha)}>>>>` : "";
    const box = `/BBox[0 0 ${TILE} ${TILE}]/XStep ${TILE}/YStep ${TILE}/Matrix[${matrix}]`;
    const head = `/Type/Pattern/PatternType 1/PaintType 1/TilingType 1${box}/Resources<<${states}>>`;
    found.push(`/${name} ${await used.objects.stream(head, latin(inner))} 0 R`);
  }
  return found.join("");
}

async function imagesOf(used: Resources): Promise<string> {
  const found: string[] = [];
  for (const { name, width, height, pixels } of used.images) {
    const [colors, opacity] = [new Uint8Array((pixels.length / 4) * 3), new Uint8Array(pixels.length / 4)];
    for (let i = 0; i < opacity.length; i++) {
      colors.set(pixels.subarray(4 * i, 4 * i + 3), 3 * i);
      opacity[i] = pixels[4 * i + 3]!;
    }
    const size = `/Type/XObject/Subtype/Image/Width ${width}/Height ${height}/BitsPerComponent 8`;
    const mask = await used.objects.stream(`${size}/ColorSpace/DeviceGray`, opacity);
    const own = await used.objects.stream(`${size}/ColorSpace/DeviceRGB/SMask ${mask} 0 R`, colors);
    found.push(`/${name} ${own} 0 R`);
  }
  return found.join("");
}

function statesOf(used: Resources): string {
  return [...used.alphas].map(([alpha, name]) => `/${name}<</ca ${alpha}/CA ${alpha}>>`).join("");
}

function path(moves: Move[]): string {
  const operator = { M: "m", L: "l", C: "c", R: "re", Z: "h" };
  return moves.map(([kind, ...at]) => `${at.map(number).join(" ")} ${operator[kind]}`).join(" ");
}

function colorOf(color: string): string {
  const [red, green, blue] = channelsOf(color);
  return [red, green, blue].map((value) => number(value / 255)).join(" ");
}

function number(value: number): string {
  return String(Math.round(value * 1000) / 1000);
}

/** A text string in UTF-16, as the properties of a document need it. */
function unicode(text: string): string {
  const codes = Array.from({ length: text.length }, (_, i) =>
    text.charCodeAt(i).toString(16).padStart(4, "0"),
  );
  return `<feff${codes.join("")}>`;
}

function document_(list: Bytes[], catalog: number, info: number): Bytes {
  const parts: Bytes[] = [latin("%PDF-1.7\n%\u00e2\u00e3\u00cf\u00d3\n")];
  const places: number[] = [];
  let at = parts[0]!.length;
  list.forEach((object, i) => {
    places.push(at);
    const whole = joined([latin(`${i + 1} 0 obj\n`), object, latin("\nendobj\n")]);
    parts.push(whole);
    at += whole.length;
  });
  const rows = places.map((place) => `${String(place).padStart(10, "0")} 00000 n \n`).join("");
  const trailer = `trailer\n<</Size ${list.length + 1}/Root ${catalog} 0 R/Info ${info} 0 R>>\nstartxref\n${at}\n%%EOF\n`;
  parts.push(latin(`xref\n0 ${list.length + 1}\n0000000000 65535 f \n${rows}${trailer}`));
  return joined(parts);
}

async function deflated(content: Bytes): Promise<Bytes> {
  const packed = new Blob([content]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(packed).arrayBuffer());
}

function latin(text: string): Bytes {
  return Uint8Array.from(text, (character) => character.charCodeAt(0));
}

function joined(parts: Bytes[]): Bytes {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
