/** Text with highlighting, from CodeMirror; loaded with the first page that shows some. */
import { defaultKeymap } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import { markdown } from "@codemirror/lang-markdown";
import { python } from "@codemirror/lang-python";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, StreamLanguage, syntaxHighlighting, type LanguageSupport } from "@codemirror/language";
import { diff } from "@codemirror/legacy-modes/mode/diff";
import { shell } from "@codemirror/legacy-modes/mode/shell";
import { toml } from "@codemirror/legacy-modes/mode/toml";
import { MergeView, unifiedMergeView } from "@codemirror/merge";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { EditorState, type Extension } from "@codemirror/state";
import { EditorView, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "react";
import { nonce } from "../state/nonce";
import styles from "./code.module.css";

const style = HighlightStyle.define([
  { tag: [tags.keyword, tags.moduleKeyword, tags.controlKeyword, tags.operatorKeyword], color: "var(--code-keyword)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--code-string)" },
  { tag: [tags.number, tags.bool, tags.null, tags.atom], color: "var(--code-number)" },
  { tag: [tags.comment, tags.meta], color: "var(--code-comment)", fontStyle: "italic" },
  { tag: [tags.function(tags.definition(tags.variableName)), tags.definition(tags.className), tags.heading], fontWeight: "600" },
  { tag: [tags.definition(tags.propertyName), tags.propertyName, tags.className], color: "var(--code-name)" },
  { tag: tags.inserted, color: "var(--good)" },
  { tag: tags.deleted, color: "var(--bad)" },
]);

const theme = EditorView.theme({
  "&": { fontSize: "12px", height: "100%", backgroundColor: "transparent" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "18px" },
  ".cm-gutters": { backgroundColor: "transparent", border: "none", color: "var(--faint)" },
  ".cm-content": { padding: "8px 0", caretColor: "var(--text)" },
  ".cm-selectionBackground, &.cm-focused .cm-selectionBackground": { backgroundColor: "var(--accent-soft) !important" },
  ".cm-panels": { backgroundColor: "var(--sunken)", color: "var(--text)", borderColor: "var(--line)" },
  ".cm-textfield": { backgroundColor: "var(--page)", border: "1px solid var(--line-strong)", borderRadius: "4px", fontSize: "12px" },
  ".cm-button": { backgroundImage: "none", backgroundColor: "var(--page)", border: "1px solid var(--line-strong)", borderRadius: "4px" },
  ".cm-changedLine": { backgroundColor: "var(--added) !important" },
  ".cm-deletedChunk": { backgroundColor: "var(--removed) !important" },
  "&.cm-merge-a .cm-changedLine": { backgroundColor: "var(--removed) !important" },
  ".cm-changedText, .cm-deletedText": { background: "light-dark(#00000014, #ffffff1f) !important" },
  ".cm-collapsedLines": { background: "var(--sunken)", color: "var(--quiet)", padding: "4px 12px" },
  ".cm-merge-spacer": { background: "var(--sunken)" },
});

/** Return what a file is written in, by its name. */
export function languageOf(path: string): LanguageSupport | Extension | null {
  const ending = path.toLowerCase().split(".").at(-1);
  switch (ending) {
    case "py":
    case "pyi":
      return python();
    case "json":
    case "ipynb":
      return json();
    case "md":
      return markdown();
    case "yaml":
    case "yml":
      return yaml();
    case "toml":
    case "cfg":
    case "ini":
      return StreamLanguage.define(toml);
    case "sh":
      return StreamLanguage.define(shell);
    case "patch":
    case "diff":
      return StreamLanguage.define(diff);
    default:
      return null;
  }
}

function common(path: string, isDark: boolean): Extension[] {
  return [
    EditorView.cspNonce.of(nonce),
    EditorView.darkTheme.of(isDark),
    theme,
    syntaxHighlighting(style),
    lineNumbers(),
    EditorState.readOnly.of(true),
    EditorView.editable.of(false),
    EditorView.contentAttributes.of({ tabindex: "0", "aria-label": path, "aria-readonly": "true", role: "textbox", "aria-multiline": "true" }),
    search({ top: true }),
    highlightSelectionMatches(),
    keymap.of([...defaultKeymap, ...searchKeymap]),
    languageOf(path) ?? [],
  ];
}

/** One text, to read. */
export function Code({ text, path, isDark, className }: { text: string; path: string; isDark: boolean; className?: string | undefined }) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const view = new EditorView({ doc: text, extensions: common(path, isDark), parent: place.current! });
    return () => view.destroy();
  }, [text, path, isDark]);
  return <div ref={place} className={[styles.code, className].filter(Boolean).join(" ")} />;
}

interface DiffProps {
  left: string;
  right: string;
  path: string;
  isDark: boolean;
  /** Side by side, else one below the other. */
  isWide: boolean;
}

/** Two texts and what differs; what is equal is folded. */
export function Diff({ left, right, path, isDark, isWide }: DiffProps) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const extensions = common(path, isDark);
    const collapse = { margin: 3, minSize: 6 };
    if (isWide) {
      const view = new MergeView({
        a: { doc: left, extensions },
        b: { doc: right, extensions },
        parent: place.current!,
        collapseUnchanged: collapse,
        gutter: false,
      });
      return () => view.destroy();
    }
    const view = new EditorView({
      doc: right,
      extensions: [...extensions, unifiedMergeView({ original: left, mergeControls: false, collapseUnchanged: collapse, gutter: false })],
      parent: place.current!,
    });
    return () => view.destroy();
  }, [left, right, path, isDark, isWide]);
  return <div ref={place} className={styles.diff} />;
}
