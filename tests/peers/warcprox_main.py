"""warcprox, allowed to fetch from loopback; run in warcprox's own environment."""

import sys

from warcprox.main import main
from warcprox.warcproxy import WarcProxyHandler

WarcProxyHandler.allow_localhost = True
main(["warcprox", *sys.argv[1:]])
