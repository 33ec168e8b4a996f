#!/usr/bin/env bash
# The main job on real data: 336,776 flights from raw CSV to evenly sized shards to a trained model.
# It learns which airline flew, from route and times alone. Needs shardkit[all,examples]; starts afresh each time.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-out/quickstart}
rm -rf "$folder/flights" "$folder/model"
mkdir -p "$folder"
cd "$folder"

show() {
    printf '\n$ %s\n' "$1"
    eval "$1"
}

python "$here/flights.py" raw
show "shardkit convert 'raw/*.csv' flights --split train=0.9 --split test=0.1 --shard-size 1MiB --null-value NA --seed 7"
show "shardkit inspect flights"
show "shardkit verify flights"
show "shardkit train flights --label carrier --ignore tailnum,flight --epochs 1 --output model"

printf '\nEverything is in %s:\n' "$PWD"
printf '  %-10s %s\n' \
    raw "the flights as they came" \
    flights "the dataset: manifests/ says what it is, data/ holds the shards" \
    model "checkpoints, metrics and TensorBoard files"
