# Sourced by the scripts: sets BUN to a Bun of the pinned version, installing it from the npm package when it is missing.
# Needs only Node.js with npm. Nothing is installed outside the checkout (.tools/, node_modules/).
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUN_VERSION=1.4.5
BUN="$root/.tools/node_modules/bun/bin/bun.exe"

if [ "$("$BUN" --version 2>/dev/null)" != "$BUN_VERSION" ]; then
  echo "installing Bun $BUN_VERSION from the npm package into .tools/ …" >&2
  mkdir -p "$root/.tools"
  npm install --prefix "$root/.tools" --no-save --no-package-lock --no-audit --no-fund --loglevel=error "bun@$BUN_VERSION" >&2
  # npm 11 leaves install scripts out; the package's own step only moves the binary into place.
  [ "$("$BUN" --version 2>/dev/null)" = "$BUN_VERSION" ] || (cd "$root/.tools/node_modules/bun" && node install.js) >&2
  [ "$("$BUN" --version 2>/dev/null)" = "$BUN_VERSION" ] || { echo "Bun $BUN_VERSION could not be installed from npm; see the lines above" >&2; exit 1; }
fi
export BUN
if [ ! -d "$root/node_modules" ] || [ "$root/bun.lock" -nt "$root/node_modules/.installed" ]; then
  echo "installing the packages of bun.lock into node_modules/ …" >&2
  (cd "$root" && "$BUN" install --frozen-lockfile --silent) >&2 && touch "$root/node_modules/.installed"
fi
