/** Light or dark: as chosen, or as the system is. */

import type { Theme } from "../layout/hash";

export const darkSystem = window.matchMedia("(prefers-color-scheme: dark)");

export function isDark(theme: Theme): boolean {
  return theme === "auto" ? darkSystem.matches && !window.matchMedia("print").matches : theme === "dark";
}

export function applyTheme(theme: Theme): void {
  document.documentElement.dataset.theme = isDark(theme) ? "dark" : "light";
}
