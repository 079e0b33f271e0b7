#!/usr/bin/env bash
# Packs this checkout into .carry/ for a machine with a GPU, PyTorch and Python 3.12 that has neither a network nor
# nvcc: sources, libraries compiled here, packages that its Python lacks. From the root, after `make install`:
#   tests/gpu/pack.sh [folder with text for the training runs]
# There, in the folder that holds .carry/:
#   bash .carry/on_device.sh tests rows rounds compiled train counters
# GPU_ARCHITECTURE is what is compiled for (90 is an H100's), GPU_PACKAGES what is taken along.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
architecture=${GPU_ARCHITECTURE:-90}-real
packages=${GPU_PACKAGES:-hydra-core omegaconf datasets dill multiprocess}
carry=.carry bin=.venv/bin build=build/gpu
rm -rf "$carry"
mkdir -p "$carry/wheels" "$build"
"$bin/cmake" -S . -B "$build" -G Ninja -DCMAKE_MAKE_PROGRAM="$PWD/$bin/ninja" -DGRADWIRE_CUDA=ON \
  -DGRADWIRE_EMULATION=OFF -DCMAKE_CUDA_ARCHITECTURES="$architecture" > "$build/log"
"$bin/cmake" --build "$build" >> "$build/log" || { tail -20 "$build/log"; exit 1; }
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
git ls-files -z | grep -zv '^results/\|^docs/\|^tests/harness/\|^tests/docs/\|^tests/golden/' \
  | xargs -0 cp --parents -P -t "$stage"
mkdir -p "$stage/gradwire/lib"
find "$build" -name 'libgradwire_*.so' -exec cp {} "$stage/gradwire/lib/" \;
strip "$stage"/gradwire/lib/*.so
git describe --always --dirty > "$stage/COMMIT"
tar cJf "$carry/sources.tar.xz" -C "$stage" .
for package in $packages; do
  version=$(sed -n "s/^$package==\([^; ]*\).*/\1/p" requirements.lock)
  "$bin/python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform any \
    -d "$carry/wheels" "$package==$version"
done
antlr=$(sed -n 's/^\(antlr4-python3-runtime==[^; ]*\).*/\1/p' requirements.lock)
"$bin/python" -m pip wheel -q --no-deps -w "$carry/wheels" "$antlr"
cp tests/gpu/on_device.sh "$carry/"
[ $# -eq 0 ] || cp -r "$1" "$carry/text"
du -sh "$carry"
