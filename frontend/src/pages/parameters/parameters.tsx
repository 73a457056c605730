export function ParametersPage() { return <p>ParametersPage</p>; }
