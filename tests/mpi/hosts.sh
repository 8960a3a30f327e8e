#!/usr/bin/env bash
# Two hosts on one machine: network namespaces, joined by a cable that can be cut. Needs root and iproute2.
#   hosts.sh up | down | cut      hosts.sh run HOST COMMAND...: as ssh would, for mpiexec -launcher-exec
set -euo pipefail
ssh_as() {  # a host name, shared memory and semaphores of its own, or MPICH would not use the network
    local number=$1 && shift
    exec ip netns exec "minicait$number" unshare --uts --ipc --mount bash -c \
        "hostname minicait$number && mount -t tmpfs tmpfs /dev/shm && $*"
}
case $1 in
up)
    for i in 0 1; do ip netns add "minicait$i"; done
    ip link add cable0 netns minicait0 type veth peer name cable1 netns minicait1
    for i in 0 1; do
        ip -n "minicait$i" addr add "10.77.0.$((i + 1))/24" dev "cable$i"
        ip -n "minicait$i" link set "cable$i" up
        ip -n "minicait$i" link set lo up
    done
    for _ in $(seq 100); do  # MPI looks once which networks there are
        ip -n minicait0 link show cable0 | grep -q 'state UP' && ip -n minicait1 link show cable1 | grep -q 'state UP' && break
        sleep 0.1
    done ;;
down) for i in 0 1; do ip netns pids "minicait$i" | xargs -r kill -9; ip netns delete "minicait$i"; done ;;
cut) ip -n minicait1 link set cable1 down ;;
*)  # as ssh [options] HOST COMMAND
    while [[ $1 == -* ]]; do shift; done
    host=$1 && shift
    ssh_as $((${host##*.} - 1)) "$@" ;;
esac
