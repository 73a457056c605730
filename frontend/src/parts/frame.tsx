/** What stands around every page: the head with the project, and the session that everything needs. */
import { useQuery } from "@tanstack/react-query";
import { Link, Outlet, useNavigate, useRouteContext, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo, type ReactNode } from "react";
import { api, data, rememberFacts } from "../api/client";
import { siteQuery } from "../api/queries";
import { SharedProvider, useConnection, useMedia, useShared } from "../state/site";
import { applyTheme, useKept, type Theme } from "../state/local";
import { age } from "../state/format";
import { IconButton } from "./button";
import { Empty, Failure } from "./failure";
import { Icon } from "./icons";
import { Menu, MenuItem, MenuLine, MenuTitle } from "./menu";
import { Rest } from "./more";
import { Palette } from "./palette";
import { Shortcuts, showShortcuts } from "./shortcuts";
import { Toasts } from "./toast";
import styles from "./frame.module.css";

const MOST_PROJECTS = 12;

export function Frame() {
  const search: { project?: string } = useSearch({ strict: false });
  const project = search.project ?? "";
  const { live } = useRouteContext({ from: "__root__" });
  const facts = useQuery(siteQuery(project));
  const found = facts.data;
  if (found) rememberFacts(found);
  if (facts.error) return <Failure error={facts.error} />;
  if (!found) return null;
  return (
    <SharedProvider facts={found} project={project} live={live}>
      <a className={styles.skip} href="#main">
        Skip to content
      </a>
      <Outlet />
      <Shortcuts />
      <Palette />
      <Toasts />
    </SharedProvider>
  );
}

export type PageName = "runs" | "parameters" | "tables" | "inbox" | "queue" | "projects" | "";

interface PageLink {
  name: PageName;
  title: string;
  to: "/" | "/parameters" | "/tables" | "/queue";
}

const PAGES: readonly PageLink[] = [
  { name: "runs", title: "Runs", to: "/" },
  { name: "parameters", title: "Parameters", to: "/parameters" },
  { name: "tables", title: "Tables", to: "/tables" },
];
const QUEUE: PageLink = { name: "queue", title: "Queue", to: "/queue" };

/** The pages of the navigation; that of the queue once a job stands. */
function usePages(): readonly PageLink[] {
  const jobs = useQuery({ queryKey: ["queue-counts"], queryFn: () => data(api.GET("/api/queue/counts")) });
  const found = jobs.data;
  return useMemo(() => (found && found.waiting + found.running + found.ended > 0 ? [...PAGES, QUEUE] : PAGES), [found]);
}

/** The head of a page, with its title. What a page puts into it stands between the pages and the buttons. */
export function Head({ page, title, children }: { page: PageName; title?: string; children?: ReactNode }) {
  const { facts, project } = useShared();
  useEffect(() => {
    document.title = [title, facts.project, "assay"].filter(Boolean).join(" · ");
  }, [title, facts.project]);
  const search = project ? { project } : {};
  const pages = usePages();
  return (
    <header className={styles.head}>
      <ProjectMenu pages={pages} />
      <nav className={styles.pages} aria-label="Pages">
        {pages.map((each) => (
          <Link key={each.name} to={each.to} search={search} className={styles.page} aria-current={each.name === page ? "page" : undefined}>
            {each.title}
          </Link>
        ))}
      </nav>
      <div className={styles.middle}>{children}</div>
      <Connection />
      <LiveCount />
      <InboxLink isHere={page === "inbox"} />
      <ThemeButton />
      <IconButton icon="question" label="Keys" onClick={showShortcuts} className={styles.help} />
    </header>
  );
}

function ProjectMenu({ pages }: { pages: readonly PageLink[] }) {
  const { facts, project } = useShared();
  const navigate = useNavigate();
  const projects = useQuery({ queryKey: ["projects"], queryFn: () => data(api.GET("/api/projects")), enabled: false });
  const isNarrow = useMedia("(max-width: 700px)");
  const search = project ? { project } : {};
  return (
    <div
      className={styles.project}
      onPointerEnter={() => {
        if (!projects.data) void projects.refetch();
      }}
      onFocus={() => {
        if (!projects.data) void projects.refetch();
      }}
    >
      <Menu
        label="Project"
        trigger={
          <button type="button" className={styles.home} title={facts.root}>
            <Icon name="chart" />
            <span className="ellipsis">{facts.project}</span>
            <Icon name="chevron" size={12} />
          </button>
        }
      >
        {isNarrow &&
          pages.map((each) => (
            <MenuItem key={each.name} onSelect={() => void navigate({ to: each.to, search })}>
              {each.title}
            </MenuItem>
          ))}
        {isNarrow && <MenuLine />}
        <MenuTitle>Projects</MenuTitle>
        {(projects.data ?? [])
          .filter((each) => !each.isLost)
          .slice(0, MOST_PROJECTS)
          .map((each) => (
            <MenuItem
              key={each.root}
              icon={each.key === project ? "check" : "folder"}
              hint={each.newest === null ? "" : age(each.newest, Date.now() / 1000)}
              onSelect={() => void navigate({ to: "/", search: each.key ? { project: each.key } : {} })}
            >
              {each.name}
            </MenuItem>
          ))}
        <MenuLine />
        <MenuItem icon="menu" onSelect={() => void navigate({ to: "/projects", search })}>
          All projects <Rest count={(projects.data?.length ?? 0) - MOST_PROJECTS} at="there" />
        </MenuItem>
      </Menu>
    </div>
  );
}

/** Said when the server is away: what is here stays, and comes up to date by itself. */
function Connection() {
  const connection = useConnection();
  if (connection !== "lost") return null;
  return (
    <span className={styles.lost} role="status" title="What is shown may be old. It comes up to date by itself.">
      <Icon name="warning" /> <span>No answer from the server</span>
    </span>
  );
}

function LiveCount() {
  const { project } = useShared();
  const navigate = useNavigate();
  const running = useQuery({
    queryKey: ["live-count", project],
    queryFn: () => data(api.GET("/api/runs", { params: { query: { project, where: "status = running", limit: 0, tests: true } } })),
  });
  const total = running.data?.total ?? 0;
  if (!total) return null;
  return (
    <button
      type="button"
      className={styles.live}
      title="Show the runs that train now"
      onClick={() => void navigate({ to: "/", search: { ...(project && { project }), w: "status = running" } })}
    >
      <Icon name="live" /> {total} live
    </button>
  );
}

function InboxLink({ isHere }: { isHere: boolean }) {
  const { project } = useShared();
  const unread = useQuery({
    queryKey: ["unread", project],
    queryFn: () => data(api.GET("/api/inbox/unread", { params: { query: { project } } })),
  });
  const count = unread.data ?? 0;
  return (
    <Link
      to="/inbox"
      search={project ? { project } : {}}
      className={styles.inbox}
      aria-current={isHere ? "page" : undefined}
      aria-label={count ? `Inbox, ${count} unread` : "Inbox"}
      title="Inbox"
    >
      <Icon name="mail" />
      {count > 0 && <span className={styles.badge}>{count > 99 ? "99+" : count}</span>}
    </Link>
  );
}

const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };
const THEME_ICONS = { system: "auto", light: "sun", dark: "moon" } as const;

function ThemeButton() {
  const [theme, setTheme] = useKept<Theme>("theme", "system");
  const choose = () => {
    applyTheme(NEXT[theme]); // first: the charts read their colours from the document
    setTheme(NEXT[theme]);
  };
  return <IconButton icon={THEME_ICONS[theme]} label={`Colours: ${theme}`} onClick={choose} className={styles.theme} />;
}

export function NotFound() {
  return (
    <>
      <Head page="" title="No such page" />
      <main id="main">
        <Empty title="There is no such page.">
          <Link to="/">Back to the runs</Link>
        </Empty>
      </main>
    </>
  );
}
