#!/usr/bin/env bash
# Check on an x86-64 Debian 12 machine that 64-bit Arm computes the same bits.
#
# Builds the binary twice, for this machine and for aarch64, and runs the second one under qemu's user emulation: the
# hashes of `oracle self-test` must be the same, with each instruction set that either side has, and so must the files of
# `oracle run` on one fixture per family with 1, 2 and 7 threads on each. Prints what it compares.
# Exit 0: all the same; 1: something differs; 2: a tool is missing.
#
# Needs these packages, and some minutes for the two builds:
#   dpkg --add-architecture arm64 && apt-get update
#   apt-get install -y --no-install-recommends rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu \
#       libc6-dev-arm64-cross qemu-user
#
# rustc-web is Debian's newer Rust compiler. It is used for the aarch64 build only, since it comes with the arm64
# standard library; cargo, and the compiler of the native build, are those of the PATH.
#
# Example:
#   scripts/check_second_arch.sh
#   CARGO_TARGET_DIR=/tmp/second-arch scripts/check_second_arch.sh
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target/second-arch}"
target=aarch64-unknown-linux-gnu
# The arm64 C library and its loader must be of one version: qemu finds both in /, where libc6:arm64 put them. With
# `-L /usr/aarch64-linux-gnu` the loader is that of libc6-dev-arm64-cross, the library still libc6:arm64's, and the first
# thread never starts.
sysroot=/
loader=/lib/ld-linux-aarch64.so.1
rustc=/usr/bin/rustc

need() {
    command -v "$1" >/dev/null || { echo "$1 is missing: install the Debian package $2" >&2; exit 2; }
}
need cargo cargo
need "$rustc" rustc-web
need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
need qemu-aarch64 qemu-user
[[ -e $loader ]] || { echo "$loader is missing: install the Debian package libc6:arm64" >&2; exit 2; }
[[ -d $("$rustc" --print sysroot)/lib/rustlib/$target ]] || {
    echo "the standard library for $target is missing: install libstd-rust-web-dev:arm64" >&2
    exit 2
}

echo "native build: $(rustc --version)"
cargo build --release --locked --quiet
echo "aarch64 build: $("$rustc" --version)"
RUSTC="$rustc" \
CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    cargo build --release --locked --quiet --target "$target"

native() { "$CARGO_TARGET_DIR/release/oracle" "$@"; }
arm() { qemu-aarch64 -L "$sysroot" "$CARGO_TARGET_DIR/$target/release/oracle" "$@"; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0

echo
echo "self-test, native:"
native self-test | tee "$scratch/native.txt"
echo "self-test, aarch64 under qemu:"
arm self-test | tee "$scratch/arm.txt"
# The last line names the machine; everything else must agree.
if diff <(sed '$d' "$scratch/native.txt") <(sed '$d' "$scratch/arm.txt"); then
    echo "the hashes agree"
else
    failed=1
fi

echo
echo "each instruction set of each side:"
for level in portable baseline avx2 avx512; do
    for side in native arm; do
        # A level that the processor has not is refused.
        if ! ORACLE_SIMD=$level "$side" packs >"$scratch/out.txt" 2>"$scratch/err.txt"; then
            echo "$side, $level: skipped: $(cat "$scratch/err.txt")"
            continue
        fi
        ORACLE_SIMD=$level "$side" self-test >"$scratch/level.txt" || failed=1
        if diff <(sed '$d' "$scratch/native.txt") <(sed '$d' "$scratch/level.txt"); then
            echo "$side, $level: the same hashes"
        else
            failed=1
        fi
    done
done

echo
for fixture in llama-bias-llama3 mistral-window qwen2-window-yarn qwen3-plain; do
    for threads in 1 2 7; do
        for side in native arm; do
            "$side" run "fixtures/$fixture" 3 17 5 29 11 2 23 8 --threads "$threads" --quiet \
                --output "$scratch/$side.$threads.tsv"
            echo "$(sha256sum <"$scratch/$side.$threads.tsv" | cut -c1-16)  $fixture, $threads threads, $side"
            cmp "$scratch/native.1.tsv" "$scratch/$side.$threads.tsv" || failed=1
        done
    done
done

if [[ $failed = 0 ]]; then
    echo "the same bits on x86-64 and aarch64"
else
    echo "the bits DIFFER" >&2
fi
exit "$failed"
