/** Help and the command palette, each in a modal dialog. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import type { Viewer } from "../layout/viewer";
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
          <IconButton name="close" title="Close" onClick={close} />
        </div>
        {children}
      </div>
    </dialog>
  );
}

const GESTURES: [string, string][] = [
  ["Wheel, pinch", "zoom at the pointer"],
  ["Drag", "move the picture"],
  ["Shift + drag", "select a range, with its statistics"],
  ["Wheel on the labels, Shift + wheel", "scroll the rows, move in time"],
  ["Alt + wheel", "higher or lower rows"],
  ["Click", "details, and the path of the micro-batch"],
  ["Double click", "zoom to the span"],
];
const SEARCHES: [string, string][] = [
  ["stage:3 mb:7", "all words must match; also step, rank, chunk, peer, lane, machine"],
  ["kind:B  kind:F,B", "kinds by letter or name"],
  ["dur>5ms  wait>=300us", "durations"],
  ["mb:0-3,7", "numbers and ranges"],
  ["F0.3", "forward of stage 0, micro-batch 3"],
  ["allreduce", "part of a name"],
  ["/^gpt.*mlp$/", "names that match a regular expression"],
];

export function Help({ viewer }: { viewer: Viewer }) {
  const sections = [...new Set(COMMANDS.map((command) => command.section))];
  return (
    <Dialog title="Keys and gestures" onClose={() => (viewer.display.dialog.value = "")}>
      <div class="help">
        {sections.map((section) => (
          <section key={section}>
            <h3>{section}</h3>
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
          <h3>Mouse and touch</h3>
          <Pairs pairs={GESTURES} />
        </section>
        <section>
          <h3>Search</h3>
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
    <Dialog title="All commands" onClose={() => (viewer.display.dialog.value = "")}>
      <input
        class="palette-input"
        type="text"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-label="Command"
        autofocus
        aria-activedescendant={matches.length ? `command-${at}` : undefined}
        placeholder="What to do"
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={onKeyDown}
      />
      <ul id="palette-list" class="palette-list" role="listbox" aria-label="Commands">
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
