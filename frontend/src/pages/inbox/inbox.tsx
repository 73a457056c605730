/** What finished, what died and why: a line each, the traceback one click away. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { api, data, type Schema } from "../../api/client";
import { Button, IconButton } from "../../parts/button";
import { CopyLine } from "../../parts/copy";
import { Empty, Failure } from "../../parts/failure";
import { Head } from "../../parts/frame";
import { Icon, type IconName } from "../../parts/icons";
import { useShortcuts } from "../../parts/shortcuts";
import { complain } from "../../parts/toast";
import { age, day, moment } from "../../state/format";
import { useNow, useShared } from "../../state/site";
import styles from "./inbox.module.css";

type Message = Schema["MessageFacts"];

const ICONS: Record<string, IconName> = {
  finished: "check",
  failed: "cross",
  killed: "cross",
  nan: "warning",
  "disk full": "warning",
  stalled: "history",
  plateau: "warning",
  stopped: "stop",
  resumed: "play",
};

export function InboxPage() {
  const { project } = useShared();
  const client = useQueryClient();
  const navigate = useNavigate();
  const key = ["inbox", project];
  const inbox = useQuery({ queryKey: key, queryFn: () => data(api.GET("/api/inbox", { params: { query: { project } } })) });
  const [open, setOpen] = useState<string | null>(null);
  const [cursor, setCursor] = useState(-1);
  const [onlyUnread, setOnlyUnread] = useState(false);
  const messages = useMemo(() => (inbox.data?.messages ?? []).filter((message) => !onlyUnread || !message.isRead), [inbox.data, onlyUnread]);
  const now = useNow(15);

  const mark = async (ids: readonly string[], isRead: boolean, everything = false) => {
    const before = inbox.data;
    const touched = new Set(ids);
    // At once here; what the server refuses is taken back.
    client.setQueryData<Schema["InboxFacts"]>(key, (found) => {
      if (!found) return found;
      const fresh = found.messages.map((message) => (everything || touched.has(message.id) ? { ...message, isRead } : message));
      return { messages: fresh, unread: fresh.filter((message) => !message.isRead).length };
    });
    try {
      await data(api.POST("/api/inbox/marks", { params: { query: { project } }, body: { ids: [...ids], isRead, everything } }));
      void client.invalidateQueries({ queryKey: ["unread", project] });
    } catch (error) {
      client.setQueryData(key, before);
      complain(error);
    }
  };
  const show = (message: Message) => {
    setOpen(open === message.id ? null : message.id);
    if (!message.isRead) void mark([message.id], true);
  };
  const at = messages[cursor];
  useShortcuts([
    { keys: "j", text: "Next message", run: () => setCursor(Math.min(messages.length - 1, cursor + 1)) },
    { keys: "k", text: "Message before", run: () => setCursor(Math.max(0, cursor - 1)) },
    { keys: "enter", text: "Open the message", run: () => at && show(at) },
    { keys: "x", text: "Read or unread", run: () => at && void mark([at.id], !at.isRead) },
    { keys: "escape", text: "Back to the runs", run: () => void navigate({ to: "/", search: project ? { project } : {} }) },
  ]);
  const unread = inbox.data?.unread ?? 0;
  let lastDay = "";
  return (
    <>
      <Head page="inbox" title="Inbox" />
      <main id="main" className={styles.page}>
        <div className={styles.inner}>
          <div className={styles.head}>
            <h1>Inbox</h1>
            <span className="quiet">{unread ? `${unread} unread` : "all read"}</span>
            <span className={styles.grow} />
            <Button kind="quiet" aria-pressed={onlyUnread} onClick={() => setOnlyUnread(!onlyUnread)}>
              {onlyUnread ? "Show all" : "Only unread"}
            </Button>
            <Button icon="check" disabled={!unread} onClick={() => void mark([], true, true)}>
              All read
            </Button>
          </div>
          {inbox.error && !inbox.data && <Failure error={inbox.error} />}
          {inbox.data && messages.length === 0 && (
            <Empty title={onlyUnread ? "Nothing unread." : "Nothing happened in the last two weeks."}>What finishes, fails or stands still comes here by itself.</Empty>
          )}
          <ul>
            {messages.map((message, index) => {
              const date = day(message.at);
              const isNewDay = date !== lastDay;
              lastDay = date;
              return (
                <li key={message.id}>
                  {isNewDay && <h2 className={styles.day}>{date === day(now) ? "Today" : date}</h2>}
                  <div className={styles.message} data-unread={!message.isRead || undefined} data-cursor={index === cursor || undefined}>
                    <button type="button" className={styles.line} aria-expanded={open === message.id} onClick={() => show(message)}>
                      <span className={styles.kind} data-kind={message.kind} data-bad={message.isBad || undefined}>
                        <Icon name={ICONS[message.kind] ?? "question"} size={14} /> {message.kind}
                      </span>
                      <span className={styles.tag} title={message.tag}>
                        {message.tag || message.run}
                      </span>
                      <span className={styles.text} title={message.text}>
                        {message.text}
                      </span>
                      <span className={styles.when} title={moment(message.at)}>
                        {age(message.at, now)}
                      </span>
                    </button>
                    <IconButton icon={message.isRead ? "mail" : "check"} label={message.isRead ? "Unread" : "Read"} size={14} onClick={() => void mark([message.id], !message.isRead)} />
                  </div>
                  {open === message.id && (
                    <div className={styles.detail}>
                      <p>{message.text}</p>
                      {message.detail && <pre>{message.detail.trim()}</pre>}
                      <div className={styles.next}>
                        <Link to="/runs/$id" params={{ id: message.run }} search={project ? { project } : {}}>
                          Open the run
                        </Link>
                        <Link to="/runs/$id" params={{ id: message.run }} search={{ ...(project && { project }), tab: "log" }}>
                          Its log
                        </Link>
                        {["failed", "killed", "stopped", "nan"].includes(message.kind) && <CopyLine text={`assay resume ${message.run}`} />}
                      </div>
                    </div>
                  )}
                </li>
              );
            })}
          </ul>
        </div>
      </main>
    </>
  );
}
