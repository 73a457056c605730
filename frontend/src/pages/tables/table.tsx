/** One result table: cells that are texts, or lead to values of runs and say when these changed. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { useRef, useState, type KeyboardEvent } from "react";
import { api, data, type Schema } from "../../api/client";
import { Button, IconButton } from "../../parts/button";
import { copyText } from "../../parts/copy";
import { Dialog } from "../../parts/dialog";
import { Failure } from "../../parts/failure";
import { Head } from "../../parts/frame";
import { Icon } from "../../parts/icons";
import { Markdown } from "../../parts/markdown";
import { Menu, MenuItem, MenuLine, MenuTitle } from "../../parts/menu";
import { useShortcuts } from "../../parts/shortcuts";
import { complain, say } from "../../parts/toast";
import { cell as showValue, count, isLongInteger, moment } from "../../state/format";
import { useShared } from "../../state/site";
import { LinkDialog } from "./link";
import styles from "./tables.module.css";

type TableFacts = Schema["TableFacts"];
type CellFacts = Schema["CellFacts"];
type Form = "markdown" | "latex" | "csv" | "html" | "json";
type Change = Partial<Schema["ChangeFacts"]> & Pick<Schema["ChangeFacts"], "what">;

/** The table as a change will leave it, shown until the server has answered. */
type ShownAtOnce = (facts: TableFacts) => TableFacts;

interface Place {
  row: number;
  column: number;
}

interface Shown {
  what: "link" | "history";
  row: string;
  column: string;
}

const FORMS: readonly { form: Form; title: string }[] = [
  { form: "markdown", title: "Markdown" },
  { form: "latex", title: "LaTeX (booktabs)" },
  { form: "csv", title: "CSV" },
  { form: "html", title: "HTML" },
  { form: "json", title: "JSON" },
];

export function TablePage() {
  const { name } = useParams({ from: "/tables/$name" });
  const { project } = useShared();
  const navigate = useNavigate();
  const client = useQueryClient();
  const key = ["table", project, name];
  const table = useQuery({
    queryKey: key,
    queryFn: () => data(api.GET("/api/tables/{name}", { params: { path: { name }, query: { project } } })),
    staleTime: 0,
  });
  const search = project ? { project } : {};
  useShortcuts([{ keys: "escape", text: "Back to the tables", run: () => void navigate({ to: "/tables", search }) }]);
  const [pending, setPending] = useState<readonly ShownAtOnce[]>([]);
  const turn = useRef(Promise.resolve());
  // One request at a time, in order: each names the revision that the one before it has made.
  const inTurn = (request: (revision: string) => Promise<TableFacts>, shownAtOnce: ShownAtOnce = (facts) => facts) => {
    const applied: ShownAtOnce = (facts) => (facts.name === name ? shownAtOnce(facts) : facts);
    setPending((others) => [...others, applied]);
    turn.current = turn.current.then(async () => {
      try {
        const fresh = await request(client.getQueryData<TableFacts>(key)?.revision ?? "");
        await client.cancelQueries({ queryKey: key }); // its answer may be older than this one
        client.setQueryData(key, fresh);
        void client.invalidateQueries({ queryKey: ["table-history", project, name] });
      } catch (error) {
        complain(error);
        await table.refetch();
      } finally {
        setPending((others) => others.filter((each) => each !== applied));
      }
    });
    return turn.current;
  };
  const change = (changes: readonly Change[], shownAtOnce?: ShownAtOnce) => {
    const whole = changes.map((each) => ({ row: "", column: "", ...each }));
    return inTurn(
      (revision) => data(api.POST("/api/tables/{name}/changes", { params: { path: { name }, query: { project } }, body: { changes: whole, revision } })),
      shownAtOnce,
    );
  };
  const fill = (text: string) =>
    inTurn(() => data(api.POST("/api/tables/{name}/import", { params: { path: { name }, query: { project } }, body: { text } })));
  const remove = async () => {
    try {
      await data(api.DELETE("/api/tables/{name}", { params: { path: { name }, query: { project } } }));
      void client.invalidateQueries({ queryKey: ["tables", project] });
      void navigate({ to: "/tables", search });
    } catch (error) {
      complain(error);
    }
  };
  const shown = table.data && pending.reduce((facts, apply) => apply(facts), table.data);
  return (
    <>
      <Head page="tables" title={shown?.title ?? name} />
      <main id="main" className={styles.page}>
        {table.error && !table.data ? (
          <Failure error={table.error} />
        ) : (
          shown && <Sheet facts={shown} onChange={change} onImport={fill} onRemove={remove} />
        )}
      </main>
    </>
  );
}

interface SheetProps {
  facts: TableFacts;
  onChange: (changes: readonly Change[], shownAtOnce?: ShownAtOnce) => Promise<void>;
  onImport: (text: string) => Promise<void>;
  onRemove: () => Promise<void>;
}

function Sheet({ facts, onChange, onImport, onRemove }: SheetProps) {
  const { facts: site, project } = useShared();
  const [shown, setShown] = useState<Shown | null>(null);
  const [isRemoving, setRemoving] = useState(false);
  const [isOverview, setOverview] = useState(false);
  const file = useRef<HTMLInputElement>(null);
  const isFixed = site.isReadOnly;
  const stale = facts.rows.flatMap((row) => row.cells.map((cell, at) => ({ row: row.key, column: facts.columns[at]!.key, cell }))).filter(({ cell }) => cell.state === "stale");
  const exported = async (form: Form, isFile: boolean) => {
    const path = `api/tables/${facts.name}/export?form=${form}${project ? `&project=${encodeURIComponent(project)}` : ""}`;
    if (isFile) {
      window.location.assign(new URL(path, document.baseURI));
      return;
    }
    try {
      const answer = await fetch(new URL(path, document.baseURI));
      if (await copyText(await answer.text())) say(`Copied as ${form === "latex" ? "LaTeX" : form}.`);
    } catch (error) {
      complain(error);
    }
  };
  return (
    <div className={styles.sheet}>
      <div className={styles.bar}>
        <Link to="/tables" search={project ? { project } : {}} className={styles.back} aria-label="All tables">
          <Icon name="left" />
        </Link>
        <Editable label="Title" className={styles.title} text={facts.title} isFixed={isFixed} onSave={(text) => void onChange([{ what: "title", text }], (before) => ({ ...before, title: text }))} />
        <code className={styles.name}>{facts.name}</code>
        <span className={styles.grow} />
        {stale.length > 0 && !isFixed && (
          <Button icon="check" onClick={() => void onChange(stale.map(({ row, column }) => ({ what: "accept", row, column })))}>
            Take over {count(stale.length)} changed
          </Button>
        )}
        <Menu
          align="end"
          trigger={
            <Button icon="export">
              Export <Icon name="chevron" size={12} />
            </Button>
          }
        >
          <MenuTitle>Copy</MenuTitle>
          {FORMS.map(({ form, title }) => (
            <MenuItem key={form} icon="copy" onSelect={() => void exported(form, false)}>
              {title}
            </MenuItem>
          ))}
          <MenuLine />
          <MenuTitle>Save as a file</MenuTitle>
          {FORMS.map(({ form, title }) => (
            <MenuItem key={form} icon="file" onSelect={() => void exported(form, true)}>
              {title}
            </MenuItem>
          ))}
        </Menu>
        <Menu align="end" trigger={<IconButton icon="more" label="More about the table" />}>
          <MenuItem icon="history" onSelect={() => setOverview(true)}>
            History
          </MenuItem>
          {!isFixed && (
            <MenuItem icon="plus" onSelect={() => file.current?.click()}>
              Add rows of a CSV file
            </MenuItem>
          )}
          {!isFixed && <MenuLine />}
          {!isFixed && (
            <MenuItem icon="trash" isDanger onSelect={() => setRemoving(true)}>
              Remove the table
            </MenuItem>
          )}
        </Menu>
        <input
          ref={file}
          type="file"
          accept=".csv,text/csv"
          hidden
          aria-label="CSV file"
          onChange={(event) => {
            const chosen = event.target.files?.[0];
            event.target.value = "";
            if (chosen) void chosen.text().then(onImport);
          }}
        />
      </div>
      <Notes text={facts.notes} isFixed={isFixed} onSave={(text) => void onChange([{ what: "notes", text }], (before) => ({ ...before, notes: text }))} />
      <Grid facts={facts} isFixed={isFixed} onChange={onChange} onShow={setShown} />
      {facts.legend.map((line) => (
        <p key={line} className={styles.legend}>
          {line}
        </p>
      ))}
      <p className={styles.legend}>
        {count(facts.rows.length)} {facts.rows.length === 1 ? "row" : "rows"}
      </p>
      {shown?.what === "link" && (
        <LinkDialog
          link={cellAt(facts, shown)?.link ?? null}
          onClose={() => setShown(null)}
          onLink={(link) => {
            void onChange([{ what: "cell", row: shown.row, column: shown.column, link }]);
            setShown(null);
          }}
        />
      )}
      {(shown?.what === "history" || isOverview) && (
        <History
          name={facts.name}
          {...(shown && { row: shown.row, column: shown.column })}
          onClose={() => {
            setShown(null);
            setOverview(false);
          }}
        />
      )}
      {isRemoving && (
        <Dialog
          title={`Remove ${facts.title}?`}
          size="small"
          isOpen
          onClose={() => setRemoving(false)}
          footer={
            <>
              <Button onClick={() => setRemoving(false)}>Cancel</Button>
              <Button kind="danger" icon="trash" onClick={() => void onRemove()}>
                Remove
              </Button>
            </>
          }
        >
          <p>The table and its history are deleted. The runs that it names stay.</p>
        </Dialog>
      )}
    </div>
  );
}

function cellAt(facts: TableFacts, place: { row: string; column: string }): CellFacts | undefined {
  const at = facts.columns.findIndex((column) => column.key === place.column);
  return facts.rows.find((row) => row.key === place.row)?.cells[at];
}

interface GridProps {
  facts: TableFacts;
  isFixed: boolean;
  onChange: SheetProps["onChange"];
  onShow: (shown: Shown) => void;
}

function Grid({ facts, isFixed, onChange, onShow }: GridProps) {
  const [active, setActive] = useState<Place>({ row: 0, column: 0 });
  const [edited, setEdited] = useState<Place | null>(null);
  const [renamed, setRenamed] = useState<string | null>(null);
  const body = useRef<HTMLTableElement>(null);
  const focus = (place: Place) => {
    setActive(place);
    requestAnimationFrame(() => body.current?.querySelector<HTMLElement>(`[data-place="${place.row}:${place.column}"]`)?.focus());
  };
  const write = (place: Place, text: string) => {
    const row = facts.rows[place.row]!;
    const column = facts.columns[place.column]!;
    setEdited(null);
    focus(place);
    if (text === row.cells[place.column]!.text) return;
    void onChange([{ what: "cell", row: row.key, column: column.key, text }], (before) => withText(before, place, text));
  };
  const onKeyDown = (event: KeyboardEvent, place: Place) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) return;
    if (by) {
      focus({
        row: Math.max(0, Math.min(facts.rows.length - 1, place.row + by[0]!)),
        column: Math.max(0, Math.min(facts.columns.length - 1, place.column + by[1]!)),
      });
    } else if (isFixed) return;
    else if (event.key === "Enter" || event.key === "F2") setEdited(place);
    else if (event.key === "Delete" || event.key === "Backspace") write(place, "");
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const move = (what: "move-row" | "move-column", at: number, by: number) =>
    void onChange([{ what, ...(what === "move-row" ? { row: facts.rows[at]!.key } : { column: facts.columns[at]!.key }), place: at + by }]);
  return (
    <div className={styles.wide}>
      <table ref={body} className={styles.grid} role="grid" aria-label={facts.title}>
        <thead>
          <tr>
            {facts.columns.map((column, at) => (
              <th key={column.key} scope="col" data-number={isNumeric(facts, at) || undefined}>
                <div className={styles.headCell}>
                  {renamed === column.key ? (
                    <Field
                      label="Name of the column"
                      text={column.title}
                      onCancel={() => setRenamed(null)}
                      onSave={(title) => {
                        setRenamed(null);
                        if (title.trim() && title !== column.title) void onChange([{ what: "column", column: column.key, title }]);
                      }}
                    />
                  ) : (
                    <span className="ellipsis" title={column.title}>
                      {column.title}
                      {column.best && <span className="quiet"> {column.best === "max" ? "↑" : "↓"}</span>}
                    </span>
                  )}
                  {!isFixed && renamed !== column.key && (
                    <Menu trigger={<IconButton icon="chevron" size={12} label={`Column ${column.title}`} />}>
                      <MenuItem icon="edit" onSelect={() => setTimeout(() => setRenamed(column.key))}>
                        Rename
                      </MenuItem>
                      <MenuLine />
                      {(["max", "min", ""] as const).map((best) => (
                        <MenuItem key={best} {...(column.best === best && { icon: "check" as const })} onSelect={() => void onChange([{ what: "column", column: column.key, best }])}>
                          {best === "max" ? "The largest is best" : best === "min" ? "The smallest is best" : "None is best"}
                        </MenuItem>
                      ))}
                      <MenuLine />
                      <MenuItem icon="left" disabled={at === 0} onSelect={() => move("move-column", at, -1)}>
                        Move left
                      </MenuItem>
                      <MenuItem icon="right" disabled={at === facts.columns.length - 1} onSelect={() => move("move-column", at, 1)}>
                        Move right
                      </MenuItem>
                      <MenuLine />
                      <MenuItem icon="trash" isDanger onSelect={() => void onChange([{ what: "remove-column", column: column.key }])}>
                        Remove
                      </MenuItem>
                    </Menu>
                  )}
                </div>
              </th>
            ))}
            {!isFixed && (
              <th className={styles.last}>
                <IconButton icon="plus" size={14} label="Add a column" onClick={() => void onChange([{ what: "add-column", text: `column ${facts.columns.length + 1}` }])} />
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {facts.rows.map((row, at) => (
            <tr key={row.key}>
              {row.cells.map((cell, column) => {
                const place = { row: at, column };
                const isActive = active.row === at && active.column === column;
                const isEdited = edited?.row === at && edited.column === column;
                const keys = { row: row.key, column: facts.columns[column]!.key };
                return (
                  <td
                    key={keys.column}
                    role="gridcell"
                    data-place={`${at}:${column}`}
                    data-state={cell.state}
                    data-number={typeof cell.value === "number" || undefined}
                    tabIndex={isActive && !isEdited ? 0 : -1}
                    onFocus={() => !isActive && setActive(place)}
                    onDoubleClick={() => !isFixed && setEdited(place)}
                    onKeyDown={(event) => onKeyDown(event, place)}
                  >
                    {isEdited ? (
                      <Field
                        label={`${facts.columns[column]!.title}, row ${at + 1}`}
                        text={cell.link ? "" : cell.text}
                        onCancel={() => {
                          setEdited(null);
                          focus(place);
                        }}
                        onSave={(text) => (cell.link && !text ? setEdited(null) : write(place, text))}
                      />
                    ) : (
                      <Cell
                        cell={cell}
                        isFixed={isFixed}
                        onEdit={() => setEdited(place)}
                        onShow={(what) => onShow({ what, ...keys })}
                        onAccept={() => void onChange([{ what: "accept", ...keys }])}
                        onEmpty={() => write(place, "")}
                      />
                    )}
                  </td>
                );
              })}
              {!isFixed && (
                <td className={styles.last}>
                  <Menu align="end" trigger={<IconButton icon="more" size={14} label={`Row ${at + 1}`} />}>
                    <MenuItem icon="up" disabled={at === 0} onSelect={() => move("move-row", at, -1)}>
                      Move up
                    </MenuItem>
                    <MenuItem icon="down" disabled={at === facts.rows.length - 1} onSelect={() => move("move-row", at, 1)}>
                      Move down
                    </MenuItem>
                    <MenuLine />
                    <MenuItem icon="trash" isDanger onSelect={() => void onChange([{ what: "remove-row", row: row.key }])}>
                      Remove
                    </MenuItem>
                  </Menu>
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
      {!isFixed && (
        <Button kind="quiet" icon="plus" onClick={() => void onChange([{ what: "add-row" }])}>
          Add a row
        </Button>
      )}
    </div>
  );
}

interface CellProps {
  cell: CellFacts;
  isFixed: boolean;
  onEdit: () => void;
  onShow: (what: Shown["what"]) => void;
  onAccept: () => void;
  onEmpty: () => void;
}

function Cell({ cell, isFixed, onEdit, onShow, onAccept, onEmpty }: CellProps) {
  const { project } = useShared();
  const search = project ? { project } : {};
  const only = cell.runs.length === 1 ? cell.runs[0] : undefined;
  const text = <span className={cell.isBest ? styles.best : cell.isSecond ? styles.second : undefined}>{cell.text}</span>;
  const others = Object.entries(cell.leftOut).map(([id, status]) => `${id} (${status})`);
  const without = others.length ? `, without ${others.join(", ")}` : "";
  const title = cell.link ? `${cell.link.value} of ${cell.runs.length} runs${cell.link.where ? ` (${cell.link.where})` : ""}${without}: ${showWhole(cell)}` : cell.text;
  return (
    <div className={styles.cell}>
      <span className={styles.value} title={title}>
        {!cell.link ? (
          text
        ) : cell.state === "gone" ? (
          <span className={styles.problem}>gone</span>
        ) : only !== undefined ? (
          <Link to="/runs/$id" params={{ id: only }} search={search} tabIndex={-1}>
            {text}
          </Link>
        ) : (
          <Link to="/" search={{ ...search, sel: cell.runs.join(","), ...(cell.link.where && { w: cell.link.where }) }} tabIndex={-1}>
            {text}
          </Link>
        )}
        {cell.isNear && <span title={`Welch’s test does not tell it from the best: p = ${cell.p}`}> †</span>}
        {cell.state === "open" && (
          <span className={styles.open} title="A run behind this value still trains">
            <Icon name="live" size={12} />
          </span>
        )}
        {(cell.state === "stale" || cell.state === "gone") && cell.seen && <span className={styles.was}> was {cell.seen}</span>}
      </span>
      <span className={styles.cellMenu}>
        <Menu align="end" trigger={<IconButton icon="more" size={12} label="Cell" tabIndex={-1} />}>
          {!isFixed && cell.state === "stale" && (
            <MenuItem icon="check" onSelect={onAccept}>
              Take over the new value
            </MenuItem>
          )}
          {!isFixed && (
            <MenuItem icon="link" onSelect={() => setTimeout(() => onShow("link"))}>
              {cell.link ? "Change what it leads to" : "A value of runs ..."}
            </MenuItem>
          )}
          {!isFixed && (
            <MenuItem icon="edit" hint="enter" onSelect={() => setTimeout(onEdit)}>
              {cell.link ? "Write a text instead" : "Write"}
            </MenuItem>
          )}
          <MenuItem icon="copy" onSelect={() => void copyText(cell.link ? showWhole(cell) : cell.text)}>
            Copy the full value
          </MenuItem>
          <MenuItem icon="history" onSelect={() => setTimeout(() => onShow("history"))}>
            History
          </MenuItem>
          {!isFixed && cell.state !== "empty" && <MenuLine />}
          {!isFixed && cell.state !== "empty" && (
            <MenuItem icon="cross" hint="del" onSelect={onEmpty}>
              Empty
            </MenuItem>
          )}
        </Menu>
      </span>
    </div>
  );
}

function showWhole(cell: CellFacts): string {
  const value = cell.value === null ? "" : isLongInteger(cell.text) ? cell.text : String(cell.value);
  return cell.std === null ? value : `${value} ± ${String(cell.std)}, n = ${cell.count}`;
}

function isNumeric(facts: TableFacts, at: number): boolean {
  const values = facts.rows.map((row) => row.cells[at]!).filter((cell) => cell.state !== "empty");
  return values.length > 0 && values.every((cell) => typeof cell.value === "number");
}

function withText(facts: TableFacts, place: Place, text: string): TableFacts {
  const cell: CellFacts = { text, state: text ? "text" : "empty", value: text, std: null, count: 0, runs: [], leftOut: {}, link: null, seen: "", isBest: false, isSecond: false, isNear: false, p: null };
  const rows = facts.rows.map((row, at) => (at === place.row ? { ...row, cells: row.cells.map((each, column) => (column === place.column ? cell : each)) } : row));
  return { ...facts, rows };
}

/** A field in the place of a text: enter and leaving it save, escape does not. */
function Field({ label, text, isLong = false, onSave, onCancel }: { label: string; text: string; isLong?: boolean; onSave: (text: string) => void; onCancel: () => void }) {
  const isDone = useRef(false);
  const end = (act: () => void) => {
    if (isDone.current) return;
    isDone.current = true;
    act();
  };
  const shared = {
    className: styles.field,
    "aria-label": label,
    defaultValue: text,
    // It was asked for by enter or a double click.
     
    autoFocus: true,
    onFocus: (event: { currentTarget: { select: () => void } }) => event.currentTarget.select(),
    onBlur: (event: { currentTarget: { value: string } }) => {
      const { value } = event.currentTarget;
      end(() => onSave(value));
    },
    onKeyDown: (event: KeyboardEvent<HTMLInputElement | HTMLTextAreaElement>) => {
      if (event.key === "Escape") end(onCancel);
      else if (event.key === "Enter" && (!isLong || event.ctrlKey)) {
        const { value } = event.currentTarget;
        end(() => onSave(value));
      } else return;
      event.preventDefault();
      event.stopPropagation();
    },
  };
  return isLong ? <textarea rows={4} {...shared} /> : <input {...shared} />;
}

/** The notes of a table, in Markdown. */
function Notes({ text, isFixed, onSave }: { text: string; isFixed: boolean; onSave: (text: string) => void }) {
  const [isEdited, setEdited] = useState(false);
  if (isEdited) {
    return (
      <div className={styles.notes}>
        <Field
          label="Notes, in Markdown"
          text={text}
          isLong
          onCancel={() => setEdited(false)}
          onSave={(fresh) => {
            setEdited(false);
            if (fresh !== text) onSave(fresh);
          }}
        />
      </div>
    );
  }
  if (isFixed && !text) return null;
  return (
    <div className={styles.notes}>
      {text && <Markdown text={text} />}
      {!isFixed && (
        <Button kind="quiet" icon="edit" onClick={() => setEdited(true)}>
          {text ? "Edit the notes" : "Add notes"}
        </Button>
      )}
    </div>
  );
}

interface EditableProps {
  label: string;
  className: string | undefined;
  text: string;
  isFixed: boolean;
  onSave: (text: string) => void;
}

function Editable({ label, className, text, isFixed, onSave }: EditableProps) {
  const [isEdited, setEdited] = useState(false);
  if (isFixed) return text ? <span className={className}>{text}</span> : null;
  if (isEdited) {
    return (
      <span className={className}>
        <Field
          label={label}
          text={text}
          onCancel={() => setEdited(false)}
          onSave={(fresh) => {
            setEdited(false);
            if (fresh !== text) onSave(fresh);
          }}
        />
      </span>
    );
  }
  return (
    <button type="button" className={[className, styles.editable].join(" ")} title={`Change: ${label.toLowerCase()}`} onClick={() => setEdited(true)}>
      {text}
    </button>
  );
}

function History({ name, row = "", column = "", onClose }: { name: string; row?: string; column?: string; onClose: () => void }) {
  const { project } = useShared();
  const found = useQuery({
    queryKey: ["table-history", project, name, row, column],
    queryFn: () => data(api.GET("/api/tables/{name}/history", { params: { path: { name }, query: { project, row, column } } })),
    staleTime: 0,
  });
  return (
    <Dialog title={row ? "History of the cell" : "History of the table"} size={row ? "medium" : "large"} isOpen onClose={onClose}>
      {found.error && <Failure error={found.error} />}
      {found.data?.length === 0 && <p className="quiet">Nothing was changed here.</p>}
      <ul className={styles.history}>
        {found.data?.map((edit, at) => (
          <li key={at}>
            <span className="quiet">{moment(edit.at)}</span> <span>{edit.who}</span>
            <span className={styles.edit}>
              <span>
                {edit.what} {!row && [edit.row, edit.column].filter(Boolean).join(" ")}
              </span>{" "}
              <span className="quiet">{described(edit.old)}</span> → {described(edit.new)}
            </span>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}

/** Return what a cell was in one line: a text, or a value and what it was when somebody looked. */
function described(value: unknown): string {
  if (value === null || value === undefined || value === "") return "nothing";
  if (typeof value === "object" && "value" in value) {
    const seen = "seen" in value ? value.seen : null;
    const shown = typeof seen === "object" && seen !== null && "mean" in seen ? seen.mean : seen;
    return `${showValue(value.value)}${shown === null || shown === undefined ? "" : ` = ${showValue(shown)}`}`;
  }
  return showValue(value);
}
