{{/* Ports: port … port+portsNum+portsNumSparse-1 and peerPort. */}}
{{- define "paddle-training.validate.ports" -}}
{{- $first := int64 .Values.port -}}
{{- $last := add $first .Values.portsNum .Values.portsNumSparse -1 -}}
{{- $peer := include "paddle-training.peerPort" . | int64 -}}
{{- if or (lt $first 1024) (gt $last 65535) -}}
{{- include "paddle-training.fault" (list "port" $first (printf "1024 to %d" (sub 65535 (sub $last $first))) (printf "the ports are %d to %d (portsNum %d and portsNumSparse %d); below 1024 they need root, and TCP ports end at 65535" $first $last (int64 .Values.portsNum) (int64 .Values.portsNumSparse)) "Set another port, or fewer ports") -}}
{{- end -}}
{{- if lt (int64 .Values.portsNum) 1 -}}
{{- include "paddle-training.fault" (list "portsNum" (int64 .Values.portsNum) "at least 1" "a pod without a parameter server holds no parameters" "Set it to 1, or 2 for large models") -}}
{{- end -}}
{{- if and (eq .Values.runtime "fleet") (lt (int64 .Values.portsNumSparse) 1) -}}
{{- include "paddle-training.fault" (list "portsNumSparse" (int64 .Values.portsNumSparse) "at least 1 with runtime fleet" "rank 0's first sparse port is where the trainers' barriers (gloo) meet" "Set it to 1") -}}
{{- end -}}
{{- if and (ge $peer $first) (le $peer $last) -}}
{{- include "paddle-training.fault" (list "peerPort" $peer (printf "outside %d to %d" $first $last) "those are the parameter servers' ports" "Leave peerPort null, or set another one") -}}
{{- else if or (lt $peer 1024) (gt $peer 65535) -}}
{{- include "paddle-training.fault" (list "peerPort" $peer "1024 to 65535" "lower ports need root, TCP ports end there, and by default it is the first port behind the others" "Set a lower port, or peerPort itself") -}}
{{- end -}}
{{- if .Values.hostPorts -}}
{{- range $port := list 10250 10256 -}}
{{- if or (eq $peer (int64 $port)) (and (le $first (int64 $port)) (ge $last (int64 $port))) -}}
{{- include "paddle-training.fault" (list (ternary "peerPort" "port" (eq $peer (int64 $port))) (ternary $peer $first (eq $peer (int64 $port))) (printf "such that port %d stays free with hostPorts" $port) "on each node the kubelet or kube-proxy listens there" "Set another port, or hostPorts to false") -}}
{{- end -}}
{{- end -}}
{{- range $key, $range := dict "port" (list $first $last) "peerPort" (list $peer $peer) -}}
{{- if and (le (index $range 0 | int64) 32767) (ge (index $range 1 | int64) 30000) -}}
{{- include "paddle-training.fault" (list $key (index $range 0) "outside 30000 to 32767 with hostPorts" "NodePort Services take those ports of every node" "Set another port, or hostPorts to false") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
