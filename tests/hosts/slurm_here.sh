#!/usr/bin/env bash
# Runs a command inside a real Slurm of two hosts (n1 and n2, 2 CPUs each) on
# this one machine, in a network namespace of its own:
#
#   slurm_here.sh srun -N 2 --ntasks-per-node=2 python train.py
#
# It needs root and the Debian packages slurm-wlm and munge. Nothing listens
# outside of the namespace, and all of it ends with the command.
set -u
# Mounts of its own, too.
[ -n "${SLURM_HERE:-}" ] || SLURM_HERE=1 exec unshare -m "$0" "$@"

space=slurm$$ host=$(hostname -s) address=10.97.0.1
work=$(mktemp -d)
chmod 755 "$work"
mkdir "$work"/{state,spool.n1,spool.n2,run}
pids=()
finish() {
  kill "${pids[@]}" 2> /dev/null
  sleep 1
  kill -9 "${pids[@]}" 2> /dev/null
  umount /etc/hosts
  ip netns del $space
  rm -rf "$work"
}
trap finish EXIT

mount --make-rprivate /
printf '127.0.0.1 localhost\n%s %s n1 n2\n' $address "$host" > "$work/hosts"
mount --bind "$work/hosts" /etc/hosts
ip netns add $space
ip -n $space link set lo up
# glibc resolves names only where an interface beside lo is up.
ip -n $space link add d0 type veth peer name d1
ip -n $space addr add $address/24 dev d0
ip -n $space link set d0 up
ip -n $space link set d1 up
# Not `ip netns exec`: that hides /sys/fs/cgroup, which slurmd needs.
in_space() { exec nsenter --net=/run/netns/$space "$@"; }

head -c 1024 /dev/urandom > "$work/munge.key"
chmod 400 "$work/munge.key"
chown -R munge "$work/run" "$work/munge.key"
cat > "$work/slurm.conf" << END
ClusterName=here
SlurmctldHost=$host($address)
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket=$work/run/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$work/state
SlurmctldPidFile=$work/ctld.pid
SlurmdPidFile=$work/slurmd.%n.pid
SlurmdSpoolDir=$work/spool.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
NodeName=n1 NodeHostname=$host NodeAddr=$address Port=16818 CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=$address Port=16819 CPUs=2 State=UNKNOWN
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
END
echo "CgroupPlugin=cgroup/v1" > "$work/cgroup.conf"
export SLURM_CONF=$work/slurm.conf
setpriv --reuid=munge --regid=munge --clear-groups munged -F -f \
  --key-file="$work/munge.key" --socket="$work/run/socket" \
  --pid-file="$work/run/pid" --log-file="$work/run/log" \
  --seed-file="$work/run/seed" --num-threads=2 > "$work/munged.log" 2>&1 &
pids+=($!)
sleep 1
in_space slurmctld -D > "$work/ctld.log" 2>&1 &
pids+=($!)
sleep 2
for name in n1 n2; do
  in_space slurmd -D -N $name > "$work/$name.log" 2>&1 &
  pids+=($!)
done
for _ in $(seq 20); do
  nsenter --net=/run/netns/$space sinfo -h -o %D%t 2> /dev/null |
    grep -q 2idle && break
  sleep 0.5
done
nsenter --net=/run/netns/$space "$@"
status=$?
[ $status = 0 ] || tail -n 3 "$work"/*.log >&2
exit $status
