/** Copying to the clipboard, also where the page is not served from a secure origin. */
import { useState } from "react";
import { Icon } from "./icons";
import { complain } from "./toast";
import styles from "./copy.module.css";

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Behind a name that is no loopback there is no clipboard without https.
    const area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    document.body.append(area);
    area.select();
    // eslint-disable-next-line @typescript-eslint/no-deprecated -- the only way there is
    const isDone = document.execCommand("copy");
    area.remove();
    if (!isDone) complain("The browser does not let this page copy.");
    return isDone;
  }
}

/** A text in one line that is copied by a click. */
export function CopyLine({ text, label, title }: { text: string; label?: string; title?: string }) {
  const [isCopied, setCopied] = useState(false);
  return (
    <button
      type="button"
      className={styles.line}
      title={title ?? "Copy"}
      onClick={() => {
        void copyText(text).then((isDone) => {
          if (!isDone) return;
          setCopied(true);
          setTimeout(() => setCopied(false), 1500);
        });
      }}
    >
      {label && <span className={`quiet ${styles.label}`}>{label}</span>}
      <code className="ellipsis">{text}</code>
      <Icon name={isCopied ? "check" : "copy"} size={14} />
    </button>
  );
}
