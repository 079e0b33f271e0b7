#!/usr/bin/env bash
# Tests and measures on a GPU. From the root of a checkout with the CUDA kernels installed (`make gpu`):
#   tests/gpu/on_device.sh tests rows
# or, from the folder that holds what tests/gpu/pack.sh packed:
#   bash .carry/on_device.sh tests rows rounds compiled train counters
# What it writes goes to $OUT; `python run.py task=report` makes a page of a folder in results/gpu. DRY_RUN=1 only prints
# the commands. On an H100: set-up 13 s, tests 50 s with compute-sanitizer, rows 70, rounds 12, compiled 27, train 20
# for each codec, counters 12.
set -uo pipefail
begun=$SECONDS
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | head -1 | tr 'A-Z /' 'a-z--')
export OUT=${OUT:-$PWD/results/gpu/$(date +%F)-${device:-no-device}}
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
for what in "$@"; do
  case $what in
    tests | rows | rounds | compiled | train | counters) ;;
    *) echo "$what is none of: tests rows rounds compiled train counters"; exit 2 ;;
  esac
done
[ -n "${DRY_RUN:-}" ] || mkdir -p "$OUT"

if [ -n "${DRY_RUN:-}" ]; then
  cd "$here"
elif [ -e "$here/sources.tar.xz" ]; then
  unpacked=${UNPACKED:-/tmp/gradwire}
  root=$unpacked/checkout site=$unpacked/site
  export PYTHONPATH=$site:$unpacked/package GRADWIRE_LIBRARIES=$root/gradwire/lib
  if [ ! -e "$unpacked/done" ]; then
    rm -rf "$unpacked"
    mkdir -p "$root" "$unpacked/package" "$site/gradwire-0.1.0.dist-info"
    "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$here"/wheels/*.whl
    tar xJf "$here/sources.tar.xz" -C "$root" \
      || "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="tar")' \
        "$here/sources.tar.xz" "$root"
    ln -s "$root/gradwire" "$unpacked/package/gradwire"
    printf 'Metadata-Version: 2.1\nName: gradwire\nVersion: 0.1.0\n' > "$site/gradwire-0.1.0.dist-info/METADATA"
    touch "$unpacked/done"
  fi
  cd "$root"
else
  cd "$here/../.."
fi

failed=0
# limited SECONDS LOG COMMAND...: the command's output goes to $OUT/LOG; figures, which are lines of JSON, are kept apart
# from its errors.
limited() {
  local seconds=$1 log=$OUT/$2
  shift 2
  if [ -n "${DRY_RUN:-}" ]; then
    echo "$(basename "$log"): $*"
    return
  fi
  case $log in
    *.jsonl) timeout -s INT "$seconds" "$@" > "$log" 2> >(tail -40 | cut -c1-200) ;;
    *) timeout -s INT "$seconds" "$@" 2>&1 | tee "$log" | tail -40 | cut -c1-200; (exit "${PIPESTATUS[0]}") ;;
  esac
  local code=$?
  [ "$code" = 0 ] || { echo "$log: exit code $code"; failed=1; }
}

if [ -z "${DRY_RUN:-}" ]; then
  "$python" tests/gpu/describe_machine.py "$OUT" "tests/gpu/on_device.sh $*" || exit 1
fi

run_tests() {
  for tool in memcheck racecheck initcheck; do
    if [ -n "${DRY_RUN:-}" ]; then
      echo "$tool.log: compute-sanitizer --tool=$tool $python tests/gpu/run_operations.py"
      continue
    fi
    (PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 235 compute-sanitizer --tool=$tool --error-exitcode=9 \
      "$python" tests/gpu/run_operations.py > "$OUT/$tool.log" 2>&1; echo "exit code $?" >> "$OUT/$tool.log") &
  done
  limited 240 tests.log "$python" -m pytest -m "" tests/gpu -n "${TEST_PROCESSES:-12}" -rfEs --tb=short \
    --deselect tests/gpu/test_operations_on_gpu.py::test_compute_sanitizer_finds_nothing
  wait
  [ -n "${DRY_RUN:-}" ] && return
  grep -L "exit code 0" "$OUT"/{memcheck,racecheck,initcheck}.log | grep . && failed=1
  tail -qn 1 "$OUT"/{memcheck,racecheck,initcheck}.log
}

METRICS=gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
METRICS+=,smsp__issue_active.avg.pct_of_peak_sustained_active,sm__warps_active.avg.pct_of_peak_sustained_active
METRICS+=,l1tex__data_bank_conflicts_pipe_lsu.sum,launch__registers_per_thread,launch__grid_size
METRICS+=,l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio
METRICS+=,l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio

for what in "$@"; do
  case $what in
    tests) run_tests ;;
    rows) limited 110 rows.jsonl "$python" tests/gpu/measure_operations.py ;;
    rounds) limited 90 rounds.jsonl "$python" tests/gpu/measure_rounds.py ;;
    compiled) limited 90 compiled.jsonl "$python" tests/gpu/measure_compiled.py ;;
    counters)
      limited 120 counters.log ncu --clock-control none --print-units base --metrics "$METRICS" --csv \
        --log-file "$OUT/ncu.csv" "$python" tests/gpu/run_hot_operations.py
      limited 10 summary.log "$python" tests/gpu/summarize.py counters "$OUT/ncu.csv" "$OUT/counters.csv"
      rm -f "$OUT/ncu.csv" ;;
    train)
      text=(dataset=embedded)
      [ ! -e "$here/text" ] || text=(dataset=wikitext103 dataset.path="$here/text")
      runs=$(mktemp -d)
      for codec in bf16 dynamiq mxfp8; do
        limited 60 "train-$codec.log" "$python" run.py size=gpu model=gpt2 "${text[@]}" cluster=virtual \
          cluster.device=cuda cluster.workers=4 codec=$codec tracking=none plots=false train.save_checkpoint=false \
          train.steps=24 train.warmup_steps=8 eval.every=24 hydra.run.dir="$runs/$codec"
        limited 10 summary.log "$python" tests/gpu/summarize.py training "$runs/$codec" "$OUT/train-$codec.json"
      done
      rm -rf "$runs" ;;
  esac
  echo "== $what: $((SECONDS - begun)) s since the start"
done
exit $failed
