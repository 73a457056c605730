/** All projects of this user on this machine. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, data } from "../../api/client";
import { Failure } from "../../parts/failure";
import { Head } from "../../parts/frame";
import { age, count, moment } from "../../state/format";
import { useNow, useShared } from "../../state/site";
import styles from "./projects.module.css";

export function ProjectsPage() {
  const { project } = useShared();
  const projects = useQuery({ queryKey: ["projects"], queryFn: () => data(api.GET("/api/projects")), staleTime: 0 });
  const now = useNow(30);
  return (
    <>
      <Head page="projects" title="Projects" />
      <main id="main" className={styles.page}>
        <div className={styles.inner}>
          <h1>Projects</h1>
          {projects.error && <Failure error={projects.error} />}
          <table className={styles.table}>
            <thead>
              <tr>
                <th>project</th>
                <th className="number">runs</th>
                <th>newest</th>
                <th>folder</th>
              </tr>
            </thead>
            <tbody>
              {(projects.data ?? []).map((each) => (
                <tr key={each.root} data-here={each.key === project && !each.isLost ? true : undefined}>
                  <td>
                    {each.isLost ? (
                      <span className="quiet">{each.name}</span>
                    ) : (
                      <Link to="/" search={each.key ? { project: each.key } : {}}>
                        {each.name}
                      </Link>
                    )}
                  </td>
                  <td className="number">{each.isLost ? "" : count(each.runs)}</td>
                  <td title={each.newest === null ? "" : moment(each.newest)}>{each.newest === null ? "" : age(each.newest, now)}</td>
                  <td title={each.root}>
                    <code>{each.root}</code> {each.problem && <span className={styles.problem}>{each.problem}</span>}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
          <p className="quiet">
            A project comes here with its first run. <code>assay gc</code> forgets those that are gone.
          </p>
        </div>
      </main>
    </>
  );
}
