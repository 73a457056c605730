/** What stands around every page: the head with the project, and the session that everything needs. */
import { useQuery } from "@tanstack/react-query";
import { Link, Outlet, useSearch } from "@tanstack/react-router";
import { useEffect } from "react";
import { api, data, useFacts } from "../api/client";
import { SharedProvider, useConnection, useShared } from "../state/site";
import { applyTheme, useKept, type Theme } from "../state/local";
import { IconButton } from "./button";
import { Empty, Failure } from "./failure";
import { Icon } from "./icons";
import styles from "./frame.module.css";

export function Frame() {
  const search: { project?: string } = useSearch({ strict: false });
  const project = search.project ?? "";
  const facts = useQuery({
    queryKey: ["site", project],
    queryFn: () => data(api.GET("/api/site", { params: { query: { project } } })),
    staleTime: Infinity,
  });
  useEffect(() => {
    if (facts.data) {
      useFacts(facts.data);
      document.title = `${facts.data.project} · assay`;
    }
  }, [facts.data]);
  if (facts.error) return <Failure error={facts.error} />;
  if (!facts.data) return null;
  return (
    <SharedProvider facts={facts.data} project={project}>
      <a className={styles.skip} href="#main">
        Skip to content
      </a>
      <Outlet />
    </SharedProvider>
  );
}

/** The head of a page. What a page puts into it stands between the project and the buttons. */
export function Head({ children }: { children?: React.ReactNode }) {
  const { facts, project } = useShared();
  return (
    <header className={styles.head}>
      <Link to="/" search={project ? { project } : {}} className={styles.home} aria-label="Workspace">
        <Icon name="chart" />
        <span>{facts.project}</span>
      </Link>
      <div className={styles.middle}>{children}</div>
      <Lost />
      <ThemeButton />
    </header>
  );
}

/** Said when the server is away, and not before it has been for a moment. */
function Lost() {
  const connection = useConnection();
  if (connection !== "lost") return null;
  return (
    <span className={styles.lost} role="status">
      <Icon name="warning" /> no answer from the server, trying again
    </span>
  );
}

const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };
const THEME_ICONS = { system: "auto", light: "sun", dark: "moon" } as const;

function ThemeButton() {
  const [theme, setTheme] = useKept<Theme>("theme", "system");
  useEffect(() => applyTheme(theme), [theme]);
  return <IconButton icon={THEME_ICONS[theme]} label={`Colours: ${theme}`} onClick={() => setTheme(NEXT[theme])} />;
}

export function NotFound() {
  return (
    <>
      <Head />
      <Empty title="There is no such page.">
        <Link to="/">Back to the runs</Link>
      </Empty>
    </>
  );
}
