// The dialog in which people choose the settings that the list of runs shows as columns.
import { container, element, errorMessage, formatCount, setAttributes, setText } from "./dom.js";
import { openDialog } from "./dialog.js";
import { getJson } from "./source.js";

const COLUMNS_MAX = 20;
const COLUMNS_READING_MS = 600;

/**
 * `filter` is that of the list, `columns` are chosen already; `onChange` gets the new ones at once.
 * @param {string} filter
 * @param {string[]} columns
 * @param {(columns: string[]) => void} onChange
 */
export function openColumnsDialog(filter, columns, onChange) {
  const chosen = [...columns];
  const search = setAttributes(element("input", "", "input"), {
    type: "search",
    placeholder: "Filter settings",
    "aria-label": "Filter settings",
  });
  const note = setAttributes(element("p", "The settings are being read.", "soft"), { role: "status" });
  const list = element("ul", "", "choices");
  const dialog = openDialog(
    "Columns",
    container(
      "div",
      "",
      element("p", "Settings of these runs as columns of the list, by which it can be sorted and grouped.", "soft"),
      search,
      list,
      note,
    ),
  );
  /** @type {ListedSetting[]} */
  let known = [];

  /**
   * @param {string} name
   * @param {boolean} isChosen
   */
  const change = (name, isChosen) => {
    const place = chosen.indexOf(name);
    if (isChosen && place < 0) chosen.push(name);
    if (!isChosen && place >= 0) chosen.splice(place, 1);
    for (const box of list.querySelectorAll("input")) box.disabled = chosen.length >= COLUMNS_MAX && !box.checked;
    onChange([...chosen]);
  };
  const show = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = known.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
    const active = document.activeElement;
    const focused = active instanceof HTMLInputElement ? active.value : null;
    list.replaceChildren(...shown.map((setting) => settingChoice(setting, chosen, change)));
    if (document.activeElement === document.body)
      [...list.querySelectorAll("input")].find(({ value }) => value === focused)?.focus();
    return shown;
  };
  const load = async () => {
    try {
      /** @type {{ settings: ListedSetting[], unread_settings: number }} */
      const { settings, unread_settings: unread } = await getJson(`api/settings?${new URLSearchParams({ filter })}`);
      // What a link chose stays, though none of these runs has it.
      const missing = chosen.filter((name) => settings.every((each) => each.name !== name));
      const all = [...settings, ...missing.map((name) => ({ name, runs: 0, values: 0, text: "" }))];
      if (JSON.stringify(all) !== JSON.stringify(known)) {
        known = all;
        show();
      }
      setText(
        note,
        unread
          ? `The settings of ${formatCount(unread, "run")} are being read.`
          : known.length
            ? ""
            : "No setting of these runs is stored.",
      );
      if (unread && dialog.isConnected) setTimeout(load, COLUMNS_READING_MS);
    } catch (error) {
      setText(note, errorMessage(error));
    }
  };
  search.addEventListener("input", show);
  load();
}

/**
 * @param {ListedSetting} setting
 * @param {string[]} chosen
 * @param {(name: string, isChosen: boolean) => void} change
 */
function settingChoice({ name, values, text }, chosen, change) {
  const box = setAttributes(element("input"), { type: "checkbox", value: name });
  box.checked = chosen.includes(name);
  box.disabled = !box.checked && chosen.length >= COLUMNS_MAX;
  box.addEventListener("change", () => change(name, box.checked));
  const facts =
    values > 1 ? `${formatCount(values, "value")}: ${text}` : values ? `all: ${text}` : "of none of these runs";
  return container(
    "li",
    "",
    container("label", values > 1 ? "" : "soft", box, element("code", name), element("span", facts, "soft")),
  );
}
