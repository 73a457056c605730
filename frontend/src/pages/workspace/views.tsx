/** Named views: what the page shows, kept as a file of the project. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, data, type Schema } from "../../api/client";
import { layoutOf, type Layout } from "../../chart/layout";
import { Button } from "../../parts/button";
import { Dialog } from "../../parts/dialog";
import { Icon } from "../../parts/icons";
import { Menu, MenuItem, MenuLine } from "../../parts/menu";
import { complain, say } from "../../parts/toast";
import { parseColumn, showColumn, type WorkspaceSearch } from "../../state/address";
import { useShared } from "../../state/site";
import styles from "./workspace.module.css";

interface ViewsProps {
  search: WorkspaceSearch;
  layout: Layout;
  onOpen: (search: Partial<WorkspaceSearch>, layout: Layout) => void;
}

export function Views({ search, layout, onOpen }: ViewsProps) {
  const { project, facts } = useShared();
  const [isSaving, setSaving] = useState(false);
  const [name, setName] = useState(search.v ?? "");
  const views = useQuery({
    queryKey: ["views", project],
    queryFn: () => data(api.GET("/api/views", { params: { query: { project } } })),
  });
  const open = async (chosen: string) => {
    try {
      const found = await data(api.GET("/api/views/{name}", { params: { path: { name: chosen }, query: { project } } }));
      const panels: unknown = found.panels ? JSON.parse(found.panels) : null;
      onOpen({ ...searchOf(found), ...chartsOf(panels), v: chosen }, layoutOf(panels));
    } catch (error) {
      complain(error);
    }
  };
  const save = async () => {
    try {
      await data(
        api.PUT("/api/views/{name}", { params: { path: { name }, query: { project } }, body: viewOf(search, layout) }),
      );
      setSaving(false);
      onOpen({ v: name }, layout);
      say(`Saved as .assay/views/${name}.toml`);
      void views.refetch();
    } catch (error) {
      complain(error);
    }
  };
  const remove = async (chosen: string) => {
    try {
      await data(api.DELETE("/api/views/{name}", { params: { path: { name: chosen }, query: { project } } }));
      if (search.v === chosen) onOpen({ v: "" }, layout);
      void views.refetch();
    } catch (error) {
      complain(error);
    }
  };
  return (
    <>
      <Menu
        trigger={
          <Button kind="quiet" className={styles.tool}>
            <span className="quiet">view</span> <span className="ellipsis">{search.v ?? "default"}</span> <Icon name="chevron" size={12} />
          </Button>
        }
      >
        <MenuItem icon={search.v ? undefined : "check"} onSelect={() => onOpen({ ...EMPTY, v: "" }, layoutOf(null))}>
          default
        </MenuItem>
        {(views.data ?? []).map((each) => (
          <MenuItem key={each} {...(search.v === each && { icon: "check" as const })} onSelect={() => void open(each)}>
            {each}
          </MenuItem>
        ))}
        <MenuLine />
        <MenuItem icon="plus" disabled={facts.isReadOnly} onSelect={() => setSaving(true)}>
          Save as ...
        </MenuItem>
        {search.v && (
          <MenuItem icon="trash" isDanger disabled={facts.isReadOnly} onSelect={() => void remove(search.v!)}>
            Delete {search.v}
          </MenuItem>
        )}
      </Menu>
      <Dialog
        title="Save this view"
        size="small"
        isOpen={isSaving}
        onClose={() => setSaving(false)}
        footer={
          <Button kind="primary" disabled={!isName(name)} onClick={() => void save()}>
            Save
          </Button>
        }
      >
        <form
          onSubmit={(event) => {
            event.preventDefault();
            if (isName(name)) void save();
          }}
        >
          <label className={styles.labelField}>
            Name: letters, digits, - and _
            {/* The dialog was opened to type here. */}
            {/* eslint-disable-next-line jsx-a11y/no-autofocus */}
            <input autoFocus value={name} onChange={(event) => setName(event.target.value)} />
          </label>
          <p className="quiet">Filter, columns, order, groups and panels, as a file of the project that can be committed.</p>
        </form>
      </Dialog>
    </>
  );
}

function isName(text: string): boolean {
  return /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/.test(text);
}

/** What an address without a view has. */
const EMPTY: Partial<WorkspaceSearch> = {
  w: "",
  s: [],
  c: [],
  g: [],
  smooth: 0,
  x: "",
  logx: false,
  o: [],
  by: "",
  archived: false,
  tests: false,
};

function searchOf(view: Schema["ViewFacts"]): Partial<WorkspaceSearch> {
  return {
    ...EMPTY,
    w: view.where,
    s: view.sort,
    g: view.group,
    c: view.columns.map(({ name, width, pinned }) => showColumn({ name, ...(width && { width }), ...(pinned && { pinned }) })),
    smooth: view.smooth,
    x: view.x,
    archived: view.archived,
    tests: view.tests,
  };
}

/** Return the settings of charts that the panels of a view hold. */
function chartsOf(panels: unknown): Partial<WorkspaceSearch> {
  const { o, logx, by } = (panels as { charts?: Record<string, unknown> } | null)?.charts ?? {};
  return { ...(Array.isArray(o) && { o: o.map(String) }), logx: logx === true, by: typeof by === "string" ? by : "" };
}

function viewOf(search: WorkspaceSearch, layout: Layout): Schema["ViewFacts"] {
  return {
    name: "",
    where: search.w ?? "",
    sort: search.s ?? [],
    group: search.g ?? [],
    columns: (search.c ?? []).map(parseColumn).map((column) => ({ name: column.name, width: column.width ?? 0, pinned: column.pinned ?? false })),
    archived: search.archived ?? false,
    tests: search.tests ?? false,
    smooth: search.smooth ?? 0,
    x: search.x ?? "",
    panels: JSON.stringify({ ...layout, charts: { o: search.o, logx: search.logx, by: search.by } }),
  };
}
