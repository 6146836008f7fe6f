#!/bin/bash
# A training that needs longer than a job may last: five minutes before the time limit it receives
# SIGTERM, and the job goes back into the queue. The training has to save and to end on SIGTERM, and
# to resume from its last checkpoint when it starts.
#
#   sbatch requeue.sh
#SBATCH --job-name=grpo-7b
#SBATCH --partition=gpu
# #SBATCH --account=research
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
set -o errexit -o nounset -o pipefail

# The same after a requeue: it is one run with several attempts.
export SENTINEL_RUN_ID="grpo-7b-$SLURM_JOB_ID"
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed --quiet 1p)

# The shell stays when Slurm ends the job, until the agent has reported it.
trap : TERM

# Slurm sends SIGUSR1 to this shell only. The step gets SIGTERM, which ends no srun.
is_time_over=
trap 'is_time_over=yes; scancel --signal=TERM "$SLURM_JOB_ID.0" || true' USR1

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
if [ -n "$is_time_over" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
