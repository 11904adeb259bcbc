/** Line icons, drawn in the color of the text. */

const PATHS = {
  fit: "M3 6V3h3M10 3h3v3M13 10v3h-3M6 13H3v-3",
  undo: "M6 4 3 7l3 3M3.5 7H9a4 4 0 0 1 0 8H7",
  link: "M7 9.5 9.5 7M6.5 4.5 8 3a3 3 0 0 1 5 5l-1.5 1.5M9.5 11.5 8 13a3 3 0 0 1-5-5l1.5-1.5",
  table: "M2.5 3.5h11v9h-11zM2.5 6.5h11M6 3.5v9",
  open: "M2 12.5v-9h4l1.5 2h5.5v2M2 12.5l2-5h10.5l-2 5z",
  pin: "M6 2.5h4l-.5 4 2 2.5h-7l2-2.5zM8 9v5",
  hide: "M2 8s2.2-4 6-4 6 4 6 4-2.2 4-6 4-6-4-6-4zM3 13 13 3",
  dark: "M8 2.5a5.5 5.5 0 1 0 5.5 5.5A4.3 4.3 0 0 1 8 2.5z",
  panel: "M2.5 3.5h11v9h-11zM10 3.5v9",
  close: "m4 4 8 8M12 4l-8 8",
  up: "m4 10 4-4 4 4",
  down: "m4 6 4 4 4-4",
  left: "m10 4-4 4 4 4",
  right: "m6 4 4 4-4 4",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      <path
        d={PATHS[name]}
        fill="none"
        stroke="currentColor"
        stroke-width="1.4"
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}

interface IconButtonProps {
  name: IconName;
  title: string;
  onClick: () => void;
  pressed?: boolean | undefined;
}

export function IconButton({ name, title, onClick, pressed }: IconButtonProps) {
  return (
    <button
      type="button"
      class="icon-button"
      title={title}
      aria-label={title}
      aria-pressed={pressed}
      onClick={onClick}
    >
      <Icon name={name} />
    </button>
  );
}
