"""The reverse of a walk: gradients of whatever stages say, word by word."""
