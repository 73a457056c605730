/** Dialogs, from Radix: the rest of the page waits, Escape closes. */
import * as Radix from "@radix-ui/react-dialog";
import type { ReactNode } from "react";
import { IconButton } from "./button";
import styles from "./dialog.module.css";

interface DialogProps {
  title: string;
  isOpen: boolean;
  onClose: () => void;
  children: ReactNode;
  footer?: ReactNode;
  size?: "small" | "medium" | "large";
}

export function Dialog({ title, isOpen, onClose, children, footer, size = "medium" }: DialogProps) {
  return (
    <Radix.Root open={isOpen} onOpenChange={(open) => !open && onClose()}>
      <Radix.Portal>
        <Radix.Overlay className={styles.overlay} />
        <Radix.Content className={styles.dialog} data-size={size} aria-describedby={undefined}>
          <div className={styles.head}>
            <Radix.Title className={styles.title}>{title}</Radix.Title>
            <Radix.Close asChild>
              <IconButton icon="cross" label="Close" />
            </Radix.Close>
          </div>
          <div className={styles.body}>{children}</div>
          {footer && <div className={styles.footer}>{footer}</div>}
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}
