/** The palette on ctrl-k: runs, pages and acts by typing. */
import * as Radix from "@radix-ui/react-dialog";
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useEffect, useMemo, useState, useSyncExternalStore } from "react";
import { api, data } from "../api/client";
import { age } from "../state/format";
import { useShared } from "../state/site";
import { applyTheme, keep } from "../state/local";
import { ChoiceList, type Choice } from "./picker";
import { showShortcuts, useShortcuts } from "./shortcuts";
import dialog from "./dialog.module.css";
import styles from "./palette.module.css";

export interface Act {
  name: string;
  run: () => void;
}

let acts: readonly Act[] = [];
const watchers = new Set<() => void>();

/** Offer acts in the palette as long as the caller is on the page. */
export function useActs(given: readonly Act[]): void {
  useEffect(() => {
    acts = [...acts, ...given];
    for (const watcher of watchers) watcher();
    return () => {
      acts = acts.filter((each) => !given.includes(each));
      for (const watcher of watchers) watcher();
    };
  }, [given]);
}

export function Palette() {
  const [isOpen, setOpen] = useState(false);
  const navigate = useNavigate();
  const { project } = useShared();
  const search = project ? { project } : {};
  useShortcuts([
    { keys: "ctrl+k", text: "Search runs, pages, acts", run: () => setOpen((open) => !open) },
    { keys: "g r", text: "Go to the runs", run: () => void navigate({ to: "/", search }) },
    { keys: "g p", text: "Go to the parameters", run: () => void navigate({ to: "/parameters", search }) },
    { keys: "g t", text: "Go to the tables", run: () => void navigate({ to: "/tables", search }) },
    { keys: "g i", text: "Go to the inbox", run: () => void navigate({ to: "/inbox", search }) },
    { keys: "g q", text: "Go to the queue", run: () => void navigate({ to: "/queue", search }) },
    { keys: "g o", text: "Go to the projects", run: () => void navigate({ to: "/projects", search }) },
  ]);
  return (
    <Radix.Root open={isOpen} onOpenChange={setOpen}>
      <Radix.Portal>
        <Radix.Overlay className={dialog.overlay} />
        <Radix.Content className={styles.palette} aria-describedby={undefined}>
          <Radix.Title className="sr-only">Search runs, pages, acts</Radix.Title>
          <Search onDone={() => setOpen(false)} />
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}

const PAGES = [
  { name: "Runs", to: "/" },
  { name: "Parameters", to: "/parameters" },
  { name: "Tables", to: "/tables" },
  { name: "Inbox", to: "/inbox" },
  { name: "Queue", to: "/queue" },
  { name: "Projects", to: "/projects" },
] as const;

function Search({ onDone }: { onDone: () => void }) {
  const { project } = useShared();
  const navigate = useNavigate();
  const [text, setText] = useState("");
  const [asked, setAsked] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setAsked(text), 120);
    return () => clearTimeout(timer);
  }, [text]);
  const runs = useQuery({
    queryKey: ["palette", project, asked],
    queryFn: () => data(api.GET("/api/runs", { params: { query: { project, grep: asked, limit: 30, tests: true, archived: true } } })),
    placeholderData: (before) => before,
  });
  const offered = useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => acts,
  );
  const search = useMemo(() => (project ? { project } : {}), [project]);
  const entries = useMemo(() => {
    const found: { choice: Choice; run: () => void; isFiltered: boolean }[] = [];
    for (const act of offered) found.push({ choice: { value: act.name, kind: "act" }, run: act.run, isFiltered: true });
    for (const page of PAGES) {
      found.push({ choice: { value: page.name, kind: "page" }, run: () => void navigate({ to: page.to, search }), isFiltered: true });
    }
    const themes = [
      ["Colours: light", "light"],
      ["Colours: dark", "dark"],
      ["Colours: as the system", "system"],
    ] as const;
    for (const [name, theme] of themes) {
      found.push({
        choice: { value: name, kind: "act" },
        isFiltered: true,
        run: () => {
          keep("theme", theme);
          applyTheme(theme);
        },
      });
    }
    found.push({ choice: { value: "Keys", kind: "act" }, run: showShortcuts, isFiltered: true });
    for (const { id, tag, status, created } of runs.data?.rows ?? []) {
      found.push({
        choice: { value: `${tag || "(no tag)"}  ${id}`, kind: `${status}, ${age(created, Date.now() / 1000)}` },
        run: () => void navigate({ to: "/runs/$id", params: { id }, search }),
        isFiltered: false,
      });
    }
    return found;
  }, [offered, runs.data, navigate, search]);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = entries.filter(({ choice, isFiltered }) => !isFiltered || words.every((word) => choice.value.toLowerCase().includes(word)));
  return (
    <ChoiceList
      label="Search runs, pages, acts"
      placeholder="a run, a page, an act"
      choices={shown.map((each) => each.choice)}
      isRanked={false}
      empty="nothing is called that"
      onText={setText}
      onChoose={(value) => {
        onDone();
        shown.find((each) => each.choice.value === value)?.run();
      }}
    />
  );
}
