/** Texts in the sources of the page, found in their syntax trees: those in t, and those that should be. */

import { readdirSync, readFileSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import ts from "typescript";

const ROOT = join(import.meta.dirname, "../src");

export interface Source {
  path: string;
  text: string;
}

/** Attributes that people see or hear. */
const SHOWN_ATTRIBUTES = /^(title|aria-label|aria-roledescription|placeholder|alt|words|where)$/;

/** Strings of several words, or that begin like a sentence, are shown; keys and names in code are neither. */
const SENTENCE = /[A-Za-z]{2,}.* [a-z]|^[A-Z][a-z]{2,}|^(steps?|ranks?|stages?) \{/;

/** Texts that are no language: names of keys, examples of queries, styles, and words that are looked up as data. */
const NO_LANGUAGE =
  /^<!doctype|^select |^(Enter|Escape|Tab|Backspace|Page(Up|Down)|Arrow\w+|Shift\+.*|Ctrl\+.*|Files|DOMContentLoaded|stage:3 .*|kind:B .*|dur>5ms .*|kernel|[·()?]+)$|px |gradient|color-mix|^\(prefers|sans-serif|^[MV]\d|^\.[a-z]|^#|^(app|live-bar|section|row-label|line|range-handle) /;

/** Words that `ofData` translates where they are shown: sections of commands, heads of tables, names of facts. */
const LOOKED_UP =
  /^(Move|Find|Look|Rows|Page|waiting for|later than ideal|largest cause|start on the clock|host blocked|overlapped pair|clock error|data-parallel wait|is over)$/;

/** Files that write formats, not texts. */
const FORMATS =
  /^draw\/(pdf|svg|blocks|kernels|overlays|raster|recording_pen|textures|theme)\.ts$|^model\/language\.ts$/;

export function sources(folder = ROOT): Source[] {
  return readdirSync(folder).flatMap((name): Source[] => {
    const path = join(folder, name);
    if (statSync(path).isDirectory()) return sources(path);
    if (!/\.tsx?$/.test(name)) return [];
    return [{ path: relative(ROOT, path), text: readFileSync(path, "utf8") }];
  });
}

function treeOf({ path, text }: Source): ts.SourceFile {
  const kind = path.endsWith("x") ? ts.ScriptKind.TSX : ts.ScriptKind.TS;
  return ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true, kind);
}

function visit(node: ts.Node, see: (node: ts.Node) => void): void {
  see(node);
  ts.forEachChild(node, (child) => visit(child, see));
}

/** The texts in t, as keys of the catalog. */
export function keysOf(source: Source): string[] {
  const keys: string[] = [];
  visit(treeOf(source), (node) => {
    if (ts.isTaggedTemplateExpression(node) && node.tag.getText() === "t") keys.push(keyOf(node.template));
    if (ts.isCallExpression(node) && node.expression.getText() === "t") {
      const text = node.arguments[0]!;
      keys.push(ts.isStringLiteral(text) ? text.text : `not a literal: ${text.getText()}`);
    }
  });
  return keys;
}

/** All strings of a source. */
export function literalsOf(source: Source): string[] {
  const found: string[] = [];
  if (FORMATS.test(source.path)) return found;
  visit(treeOf(source), (node) => {
    if (ts.isStringLiteral(node)) found.push(node.text);
    if (ts.isPropertyAssignment(node) || ts.isPropertySignature(node)) found.push(node.name.getText());
  });
  return found;
}

/** Texts that people see and that are not in t, with their file. */
export function isShown(source: Source): string[] {
  const found: string[] = [];
  if (FORMATS.test(source.path)) return found;
  visit(treeOf(source), (node) => {
    const text = textOf(node);
    if (text === null || NO_LANGUAGE.test(text) || LOOKED_UP.test(text) || isInCall(node)) return;
    const attribute = ts.isJsxAttribute(node.parent) ? node.parent.name.getText() : null;
    const shown = ts.isJsxText(node)
      ? /[A-Za-z]{2}/.test(text)
      : attribute !== null
        ? SHOWN_ATTRIBUTES.test(attribute) && /[A-Za-z]{2}/.test(text)
        : SENTENCE.test(text);
    if (shown) found.push(`${source.path}: ${text}`);
  });
  return found;
}

function textOf(node: ts.Node): string | null {
  if (ts.isJsxText(node)) return node.text.trim() || null;
  if (ts.isTemplateExpression(node) || ts.isNoSubstitutionTemplateLiteral(node)) return keyOf(node);
  if (!ts.isStringLiteral(node)) return null;
  const { parent } = node;
  if (ts.isImportDeclaration(parent) || ts.isExportDeclaration(parent) || ts.isLiteralTypeNode(parent))
    return null;
  return node.text;
}

function isInCall(node: ts.Node): boolean {
  const { parent } = node;
  if (ts.isTaggedTemplateExpression(parent)) return parent.tag.getText() === "t";
  return ts.isCallExpression(parent) && parent.expression.getText() === "t";
}

function keyOf(text: ts.TemplateLiteral): string {
  if (ts.isNoSubstitutionTemplateLiteral(text)) return text.text;
  return text.templateSpans.reduce((key, span, i) => `${key}{${i}}${span.literal.text}`, text.head.text);
}
