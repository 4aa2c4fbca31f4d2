#!/usr/bin/env bash
# Installs what a build needs from the system's package manager, if this user may; else says what to
# install. Prints nothing where all of it is there. With `tests`: and what the C++ tests need; with
# `hip`: and a compiler for AMD GPUs.
set -euo pipefail

missing=()
command -v c++ >/dev/null || missing+=(g++)
command -v make >/dev/null || missing+=(make)
[ -e /usr/include/hwy/highway.h ] || [ -e /usr/local/include/hwy/highway.h ] || missing+=(libhwy-dev)
if [[ " $* " = *" tests "* ]]; then
  [ -e /usr/include/gtest/gtest.h ] || [ -e /usr/local/include/gtest/gtest.h ] || missing+=(libgtest-dev)
  [ -e /usr/include/boost/context/fiber.hpp ] || [ -e /usr/local/include/boost/context/fiber.hpp ] || missing+=(libboost-context-dev)
fi
if [[ " $* " = *" hip "* ]] && ! command -v hipcc >/dev/null; then
  missing+=(hipcc libamdhip64-dev rocm-device-libs)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
  else
    echo "Please install these system packages, then run the same command again: ${missing[*]}" >&2
    exit 1
  fi
fi
if ! command -v apt-get >/dev/null; then
  echo "This system has no apt-get; please install the equivalents of: ${missing[*]}" >&2
  exit 1
fi
echo "Installing system packages: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
