/** Buttons: with words, or an icon that has a name. */
import type { ComponentProps } from "react";
import { Icon, type IconName } from "./icons";
import styles from "./button.module.css";

interface ButtonProps extends ComponentProps<"button"> {
  icon?: IconName;
  kind?: "plain" | "primary" | "quiet" | "danger";
}

export function Button({ icon, kind = "plain", children, className, ...rest }: ButtonProps) {
  return (
    <button type="button" className={[styles.button, styles[kind], className].filter(Boolean).join(" ")} {...rest}>
      {icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

interface IconButtonProps extends Omit<ComponentProps<"button">, "aria-label"> {
  icon: IconName;
  label: string;
  size?: number;
}

export function IconButton({ icon, label, size = 16, className, ...rest }: IconButtonProps) {
  return (
    <button type="button" className={[styles.icon, className].filter(Boolean).join(" ")} aria-label={label} title={label} {...rest}>
      <Icon name={icon} size={size} />
    </button>
  );
}
