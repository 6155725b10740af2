#!/bin/bash
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --signal=B:TERM@180
# The run of a file without [fleet.hosts], over the nodes of a job: sbatch slurm.sh run.toml. Submitted or requeued again,
# on other nodes or another number of them, it continues. The folder of the file must be one that all nodes share.
set -euo pipefail
file=$(realpath "$1")
job=${file%.toml}.$SLURM_JOB_ID.toml
FLEET_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n') # srun hands the environment on
export FLEET_TOKEN
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")

{
  cat "$file"
  printf '\n[fleet.hosts]\n'
  for node in $nodes; do # the first address of each; choose another one where that is not the network of the nodes
    printf '"%s" = "%s"\n' "$node" "$(srun --nodes=1 --ntasks=1 --nodelist="$node" hostname -I | cut -d' ' -f1)"
  done
} >"$job"

for node in $nodes; do
  srun --nodes=1 --ntasks=1 --nodelist="$node" --overlap midflight up --host "$node" "$job" &
done
servers=$(jobs -p)
midflight collect "$job" & # it waits for the servers as long as start_s in [fleet]
collect=$!
trap 'kill -TERM $collect; told=yes' TERM # a last checkpoint, then the end
told=yes
while [[ $told ]]; do # a signal ends a wait, and not the collect
  told='' code=0
  wait $collect || code=$?
done
kill $servers 2>/dev/null || true
wait $servers || true
exit $code
