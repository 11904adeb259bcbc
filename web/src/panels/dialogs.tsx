/** Help and the command palette, each in a modal dialog. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Viewer } from "../layout/viewer";
import { ofData, t } from "../model/language";
import { COMMANDS, type Command, type PageActions } from "./commands";
import { IconButton } from "./icons";

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}

export function Dialog({ title, onClose: close, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog
      ref={dialog}
      class="dialog"
      aria-label={title}
      onClose={close}
      onClick={(event) => event.target === dialog.current && close()}
    >
      <div class="dialog-body" onKeyDown={(event) => event.key !== "Escape" && event.stopPropagation()}>
        <div class="dialog-head">
          <h2>{title}</h2>
          <IconButton name="close" title={t("Close")} onClick={close} />
        </div>
        {children}
      </div>
    </dialog>
  );
}

const GESTURES: [string, string][] = [
  [t("Wheel, pinch"), t("zoom at the pointer")],
  [t("Drag"), t("move the picture")],
  [t("Shift + drag"), t("select a range, with its statistics")],
  [t("Wheel on the labels, Shift + wheel"), t("scroll the rows, move in time")],
  [t("Alt + wheel"), t("higher or lower rows")],
  [t("Click"), t("details, and the path of the micro-batch")],
  [t("Double click"), t("zoom to the span")],
];
const SEARCHES: [string, string][] = [
  ["stage:3 mb:7", t("all words must match; also step, rank, chunk, peer, lane, machine")],
  ["kind:B  kind:F,B", t("kinds by letter or name")],
  ["dur>5ms  wait>=300us", "durations"],
  ["mb:0-3,7", t("numbers and ranges")],
  ["F0.3", t("forward of stage 0, micro-batch 3")],
  ["allreduce", t("part of a name")],
  ["/^gpt.*mlp$/", t("names that match a regular expression")],
];

export function Help({ viewer }: { viewer: Viewer }) {
  const sections = [...new Set(COMMANDS.map((command) => command.section))];
  return (
    <Dialog title={t("Keys and gestures")} onClose={() => (viewer.display.dialog.value = "")}>
      <div class="help">
        {sections.map((section) => (
          <section key={section}>
            <h3>{ofData(section)}</h3>
            <Pairs
              pairs={COMMANDS.filter((one) => one.section === section && one.keys.length).map((one) => [
                one.keys
                  .filter((key) => key !== "Shift+?")
                  .slice(0, 2)
                  .map(keyText)
                  .join("  "),
                one.title,
              ])}
            />
          </section>
        ))}
        <section>
          <h3>{t("Mouse and touch")}</h3>
          <Pairs pairs={GESTURES} />
        </section>
        <section>
          <h3>{t("Search")}</h3>
          <Pairs pairs={SEARCHES} />
        </section>
      </div>
    </Dialog>
  );
}

function Pairs({ pairs }: { pairs: [string, string][] }) {
  return (
    <dl class="pairs">
      {pairs.map(([keys, words]) => (
        <div key={words}>
          <dt>
            <kbd>{keys}</kbd>
          </dt>
          <dd>{words}</dd>
        </div>
      ))}
    </dl>
  );
}

function keyText(key: string): string {
  const names: Record<string, string> = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };
  return (
    names[key] ??
    key.replace(/(^|\+)([a-z])$/, (_, plus: string, letter: string) => plus + letter.toUpperCase())
  );
}

export function Palette({ viewer, page }: { viewer: Viewer; page: PageActions }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = COMMANDS.filter((command) =>
    words.every((word) => command.title.toLowerCase().includes(word)),
  );
  const run = (command: Command | undefined): void => {
    viewer.display.dialog.value = "";
    command?.run(viewer, page);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown") setAt(Math.min(at + 1, matches.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(at - 1, 0));
    else if (event.key === "Enter") run(matches[at]);
    else return;
    event.preventDefault();
  };
  return (
    <Dialog title={t("All commands")} onClose={() => (viewer.display.dialog.value = "")}>
      <input
        class="palette-input"
        type="text"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-label={t("Command")}
        autofocus
        aria-activedescendant={matches.length ? `command-${at}` : undefined}
        placeholder={t("What to do")}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={onKeyDown}
      />
      <ul id="palette-list" class="palette-list" role="listbox" aria-label={t("Commands")}>
        {matches.map((command, i) => (
          <li
            key={command.title}
            id={`command-${i}`}
            role="option"
            aria-selected={i === at}
            onClick={() => run(command)}
          >
            <span>{command.title}</span>
            <kbd>{command.keys[0] ? keyText(command.keys[0]) : ""}</kbd>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
