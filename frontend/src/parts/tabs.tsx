/** Tabs that are links: the address says which one is open. */
import { useCallback, useEffect, useRef, type ReactNode } from "react";
import styles from "./tabs.module.css";

export interface Tab {
  name: string;
  title: ReactNode;
  count?: number | undefined;
}

interface TabsProps {
  tabs: readonly Tab[];
  open: string;
  label: string;
  onOpen: (name: string) => void;
}

export function Tabs({ tabs, open, label, onOpen }: TabsProps) {
  const list = useRef<HTMLDivElement>(null);
  const place = useRef<HTMLDivElement>(null);
  // The edges beyond which there is more fade out.
  const fade = useCallback(() => {
    const { scrollLeft, clientWidth, scrollWidth } = list.current!;
    place.current!.toggleAttribute("data-before", scrollLeft > 1);
    place.current!.toggleAttribute("data-after", scrollLeft + clientWidth < scrollWidth - 1);
  }, []);
  // On a narrow screen the open one may lie beyond the edge.
  const shown = useRef(0);
  const show = useCallback(() => {
    const box = list.current!;
    const tab = box.querySelector<HTMLElement>("[aria-selected=true]");
    if (tab) box.scrollLeft = tab.offsetLeft - (box.clientWidth - tab.offsetWidth) / 2;
    shown.current = box.scrollLeft;
  }, []);
  useEffect(show, [show, open]);
  useEffect(() => {
    // A count that comes later moves the tabs; the open one stays in view, unless they were scrolled by hand.
    const observer = new ResizeObserver(() => {
      if (list.current!.scrollLeft === shown.current) show();
      fade();
    });
    observer.observe(list.current!);
    for (const tab of list.current!.children) observer.observe(tab);
    return () => observer.disconnect();
  }, [fade, show, tabs.length]);
  return (
    <div ref={place} className={styles.place}>
      <div ref={list} className={styles.tabs} role="tablist" aria-label={label} onScroll={fade}>
        {tabs.map((tab, at) => (
          <button
            key={tab.name}
            type="button"
            role="tab"
            id={`tab-${tab.name}`}
            className={styles.tab}
            aria-selected={tab.name === open}
            aria-controls={tab.name === open ? `panel-${tab.name}` : undefined}
            tabIndex={tab.name === open ? 0 : -1}
            onClick={() => onOpen(tab.name)}
            onKeyDown={(event) => {
              const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
              if (!by) return;
              event.preventDefault(); // else the browser scrolls the tabs by an arrow's width as well
              const next = tabs[(at + by + tabs.length) % tabs.length]!;
              onOpen(next.name);
              document.getElementById(`tab-${next.name}`)?.focus();
            }}
          >
            {tab.title}
            {tab.count !== undefined && tab.count > 0 && <span className={styles.count}>{tab.count}</span>}
          </button>
        ))}
      </div>
    </div>
  );
}

export function TabPanel({ name, children, className }: { name: string; children: ReactNode; className?: string | undefined }) {
  return (
    <div role="tabpanel" id={`panel-${name}`} aria-labelledby={`tab-${name}`} className={className}>
      {children}
    </div>
  );
}
