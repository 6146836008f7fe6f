#!/bin/bash
# A training on several nodes.
#
#   sbatch several-nodes.sh
#SBATCH --job-name=grpo-7b
#SBATCH --partition=gpu
# #SBATCH --account=research
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
set -o errexit -o nounset -o pipefail

# The same after a requeue: it is one run with several attempts.
export SENTINEL_RUN_ID="grpo-7b-$SLURM_JOB_ID"
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed --quiet 1p)

# The shell stays when Slurm ends the job, until the agent has reported it.
trap : TERM

# The agent of the first node, which judges the run: outside of the step, which srun kills at once
# when it gets SIGTERM. The other nodes start theirs in the step.
SENTINEL_LINGER_SECONDS=0 sentinel agent --run "$SENTINEL_RUN_ID" &
agent=$!

srun sentinel run -- torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 8 \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head_node:29500" train.py &
step=$!

# A trap ends `wait` before the step has ended.
code=0
while kill -0 "$step" 2> /dev/null; do
    code=0
    wait "$step" || code=$?
done
timeout 20 tail --pid="$agent" --follow /dev/null || true
exit "$code"
