#!/bin/sh
# Starts the peer of a pod with the training command "$@". `exec` lets SIGTERM reach the peer.
set -eu
if [ -e "$GOSSIPDP_HOME/final/final.json" ]; then
  echo "the run is finished: the final model is in $GOSSIPDP_HOME/final"
  exec sleep infinity
fi
# The first pod founds the network. Once its invite is a Secret it joins too, which changes nothing in its home.
# So a first pod that has lost its volume is a joiner, and no founder of a second network.
if [ ! -s "$INVITE" ] && { [ -e "$GOSSIPDP_HOME/network.json" ] || [ "${POD_NAME##*-}" = 0 ]; }; then
  exec gossipdp up --network "$NETWORK" --peer "$POD_NAME" --preset "$PRESET" -- "$@"
fi
until [ -s "$INVITE" ]; do
  echo "waiting for the Secret with the invite"
  sleep 10
done
# From standard input: a Secret's file can be read by the pod's group, and `join @FILE` refuses that.
exec gossipdp join --peer "$POD_NAME" - -- "$@" < "$INVITE"
