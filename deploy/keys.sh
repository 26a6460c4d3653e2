#!/bin/sh
# Makes what a deployment needs: a certificate authority, the certificate of the SuperLink, and a key for each site.
#
#   sh deploy/keys.sh FOLDER "superlink,localhost" north south west
#
# The second argument lists the SuperLink's host names. Each place needs only these files:
#   SuperLink  FOLDER/superlink.pem, FOLDER/superlink.key, FOLDER/ca.pem, and FOLDER/SITE/node.pub to register the site
#   a site     FOLDER/ca.pem, FOLDER/SITE/node   (better: each site makes node itself, and sends only node.pub)
set -eu
umask 077
folder=$1 hosts=$2
shift 2
mkdir -p "$folder"
cd "$folder"
if [ ! -e ca.pem ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 3650 \
    -subj "/CN=federation" -keyout ca.key -out ca.pem 2>/dev/null
fi
names=$(echo "$hosts" | tr ',' '\n' | sed 's/^/DNS:/' | paste -sd, -)
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj "/CN=superlink" \
  -keyout superlink.key -out superlink.csr 2>/dev/null
printf 'subjectAltName=%s,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n' "$names" > superlink.ext
openssl x509 -req -in superlink.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 397 -extfile superlink.ext \
  -out superlink.pem 2>/dev/null
rm superlink.csr superlink.ext
for site in "$@"; do
  mkdir -p "$site"
  [ -e "$site/node" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "$site" -f "$site/node"
done
echo "keys are in $(pwd)"
