"""Looks up every package that is installed here among known vulnerabilities, with pip-audit: `make audit`.

Exit status 1 if one is known, 2 if the database did not answer for every package: silence is not a clean bill.
"""

import json
import subprocess
import sys

SECONDS = 300


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--local", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        packages = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        print("The database of vulnerabilities did not answer: make audit needs the network.", file=sys.stderr)
        return 2
    return print_findings(packages)


def print_findings(packages: list[dict]) -> int:
    """Print the findings for the packages of pip-audit's JSON; return the exit status."""
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    found = [(package, hole) for package in packages for hole in package.get("vulns", ())]
    for package, hole in found:
        fixed = f"fixed in {', '.join(hole['fix_versions'])}" if hole["fix_versions"] else "not fixed yet"
        print(f"{package['name']} {package['version']}: {hole['id']}, {fixed}")
    print(f"{len(packages) - len(unknown)} packages were looked up, {len(found)} vulnerabilities are known.")
    if unknown:
        print(f"The database knows nothing of {len(unknown)}: {', '.join(unknown)}.", file=sys.stderr)
    return 1 if found else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
