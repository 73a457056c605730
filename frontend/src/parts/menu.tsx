/** Menus, from Radix: by pointer and by keyboard, closed by Escape. */
import * as Dropdown from "@radix-ui/react-dropdown-menu";
import type { ReactNode } from "react";
import { Icon, type IconName } from "./icons";
import styles from "./menu.module.css";

interface MenuProps {
  trigger: ReactNode;
  children: ReactNode;
  align?: "start" | "end";
  label?: string;
}

export function Menu({ trigger, children, align = "start", label }: MenuProps) {
  return (
    <Dropdown.Root modal={false}>
      <Dropdown.Trigger asChild>{trigger}</Dropdown.Trigger>
      <Dropdown.Portal>
        <Dropdown.Content className={styles.menu} align={align} sideOffset={4} collisionPadding={8} {...(label && { "aria-label": label })}>
          {children}
        </Dropdown.Content>
      </Dropdown.Portal>
    </Dropdown.Root>
  );
}

interface ItemProps {
  icon?: IconName | undefined;
  hint?: string;
  disabled?: boolean;
  isDanger?: boolean;
  onSelect: () => void;
  children: ReactNode;
}

export function MenuItem({ icon, hint, disabled = false, isDanger = false, onSelect, children }: ItemProps) {
  return (
    <Dropdown.Item className={styles.item} disabled={disabled} onSelect={onSelect} data-danger={isDanger || undefined}>
      <span className={styles.icon}>{icon && <Icon name={icon} />}</span>
      <span className={styles.text}>{children}</span>
      {hint && <kbd className={styles.hint}>{hint}</kbd>}
    </Dropdown.Item>
  );
}

export function MenuCheck({ checked, onChange, children }: { checked: boolean; onChange: (value: boolean) => void; children: ReactNode }) {
  return (
    <Dropdown.CheckboxItem
      className={styles.item}
      checked={checked}
      onCheckedChange={onChange}
      onSelect={(event) => event.preventDefault()}
    >
      <span className={styles.icon}>{checked && <Icon name="check" />}</span>
      <span className={styles.text}>{children}</span>
    </Dropdown.CheckboxItem>
  );
}

export function MenuChoice<T extends string>({
  value,
  choices,
  onChange,
}: {
  value: T;
  choices: readonly { value: T; label: string }[];
  onChange: (value: T) => void;
}) {
  return (
    <Dropdown.RadioGroup value={value} onValueChange={(fresh) => onChange(fresh as T)}>
      {choices.map((each) => (
        <Dropdown.RadioItem key={each.value} value={each.value} className={styles.item}>
          <span className={styles.icon}>{each.value === value && <Icon name="check" />}</span>
          <span className={styles.text}>{each.label}</span>
        </Dropdown.RadioItem>
      ))}
    </Dropdown.RadioGroup>
  );
}

export function MenuLine() {
  return <Dropdown.Separator className={styles.line} />;
}

export function MenuTitle({ children }: { children: ReactNode }) {
  return <Dropdown.Label className={styles.title}>{children}</Dropdown.Label>;
}
